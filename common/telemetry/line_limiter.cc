#include "common/telemetry/line_limiter.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/spdlog.h"

namespace bfio {

std::optional<std::string> LineLimiter::Pass(absl::string_view kind, absl::Time now) {
  MutexLock lock(&mutex_);
  auto at = kinds_.find(kind);
  if (at == kinds_.end()) {
    const bool full = kinds_.size() >= kMaxKinds;
    at = kinds_.try_emplace(full ? "other" : std::string(kind)).first;
  }
  Kind& of = at->second;
  if (now >= of.period_end) {
    of.period_end = now + period_;
    of.written = 0;
  }
  if (of.written >= burst_) {
    ++of.untold;
    return std::nullopt;
  }
  ++of.written;
  const uint64_t untold = std::exchange(of.untold, 0);
  return untold == 0 ? "" : absl::StrCat("; ", untold, " more since the last such line");
}

std::optional<std::string> LineLimiter::Pass(absl::string_view kind) {
  return Pass(kind, MonotonicNow());
}

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
