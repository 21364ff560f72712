// Log lines about callers that were turned away, few enough for an attacker not to fill a disk with them.
//
// Purpose: the first refusal of a class is a line at once; of more of them within kQuiet only the number is
// kept, and the next line of that class contains it. A class is a short text of the program's own ("client
// API: no token"), never of the caller's; `detail` may name the caller. Any thread.
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
  // Further classes share one.
  static constexpr size_t kMaxClasses = LineLimiter::kMaxKinds;

  // Writes the line, if it is time for one, as a warning.
  void Add(absl::string_view refusal_class, absl::string_view detail);

  // The line, or nothing; what Add is made of. `now` never goes back.
  std::optional<std::string> Line(absl::string_view refusal_class, absl::string_view detail, absl::Time now);

 private:
  LineLimiter limiter_{1, kQuiet};
};

}  // namespace bfio

#endif  // BFIO_COMMON_TELEMETRY_REFUSAL_LOG_H_
