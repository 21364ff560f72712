#include "common/telemetry/line_limiter.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"

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

}  // namespace bfio
