#include "common/telemetry/refusal_log.h"

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/spdlog.h"

namespace bfio {

std::optional<std::string> RefusalLog::Line(absl::string_view refusal_class, absl::string_view detail,
                                            absl::Time now) {
  MutexLock lock(&mutex_);
  auto at = classes_.find(refusal_class);
  if (at == classes_.end()) {
    const bool full = classes_.size() >= kMaxClasses;
    at = classes_.try_emplace(full ? "other" : std::string(refusal_class)).first;
  }
  Class& of = at->second;
  if (now < of.quiet_until) {
    ++of.untold;
    return std::nullopt;
  }
  std::string line =
      absl::StrCat("refused: ", refusal_class, detail.empty() ? "" : " (", detail, detail.empty() ? "" : ")");
  if (of.untold > 0) absl::StrAppend(&line, "; ", of.untold, " more since the last such line");
  of = {now + kQuiet, 0};
  return line;
}

void RefusalLog::Add(absl::string_view refusal_class, absl::string_view detail) {
  const std::optional<std::string> line = Line(refusal_class, detail, MonotonicNow());
  if (line.has_value()) spdlog::warn("{}", *line);
}

}  // namespace bfio
