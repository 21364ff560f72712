#include "common/telemetry/refusal_log.h"

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/spdlog.h"

namespace bfio {

std::optional<std::string> RefusalLog::Line(absl::string_view refusal_class, absl::string_view detail,
                                            absl::Time now) {
  const std::optional<std::string> more = limiter_.Pass(refusal_class, now);
  if (!more.has_value()) return std::nullopt;
  return absl::StrCat("refused: ", refusal_class, detail.empty() ? "" : " (", detail,
                      detail.empty() ? "" : ")", *more);
}

void RefusalLog::Add(absl::string_view refusal_class, absl::string_view detail) {
  const std::optional<std::string> line = Line(refusal_class, detail, MonotonicNow());
  if (line.has_value()) spdlog::warn("{}", *line);
}

}  // namespace bfio
