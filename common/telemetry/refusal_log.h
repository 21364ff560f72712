// Logs refused callers at a limited rate, so that an attacker cannot fill a disk.
//
// Purpose: the first refusal of a class is logged at once. Further ones within kQuiet are only counted, and
// the next line of that class contains their number. A class is a short text of the program ("client API: no
// token"), never one from the caller; `detail` may name the caller. Any thread.
#ifndef BFIO_COMMON_TELEMETRY_REFUSAL_LOG_H_
#define BFIO_COMMON_TELEMETRY_REFUSAL_LOG_H_

#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/telemetry/line_limiter.h"

namespace bfio {

class RefusalLog {
 public:
  static constexpr absl::Duration kQuiet = absl::Seconds(30);
  // Further classes are treated as one.
  static constexpr size_t kMaxClasses = LineLimiter::kMaxKinds;

  // Logs the line as a warning, unless it is suppressed.
  void Add(absl::string_view refusal_class, absl::string_view detail);

  // The line, or nothing if it is suppressed; used by Add. `now` must not decrease.
  std::optional<std::string> Line(absl::string_view refusal_class, absl::string_view detail, absl::Time now);

 private:
  LineLimiter limiter_{1, kQuiet};
};

}  // namespace bfio

#endif  // BFIO_COMMON_TELEMETRY_REFUSAL_LOG_H_
