// Log lines about callers that were turned away, few enough for an attacker not to fill a disk with them.
//
// Purpose: the first refusal of a class is a line at once; of more of them within kQuiet only the number is
// kept, and the next line of that class tells it. A class is a short text of the program's own ("client API:
// no token"), never of the caller's; `detail` may say who. Any thread.
#ifndef BFIO_COMMON_TELEMETRY_REFUSAL_LOG_H_
#define BFIO_COMMON_TELEMETRY_REFUSAL_LOG_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"

namespace bfio {

class RefusalLog {
 public:
  static constexpr absl::Duration kQuiet = absl::Seconds(30);
  // Further classes share one.
  static constexpr size_t kMaxClasses = 64;

  // Writes the line, if it is time for one, as a warning.
  void Add(absl::string_view refusal_class, absl::string_view detail);

  // The line, or nothing; what Add is made of. `now` never goes back.
  std::optional<std::string> Line(absl::string_view refusal_class, absl::string_view detail, absl::Time now);

 private:
  struct Class {
    absl::Time quiet_until = absl::InfinitePast();
    uint64_t untold = 0;
  };
  Mutex mutex_;
  std::map<std::string, Class, std::less<>> classes_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace bfio

#endif  // BFIO_COMMON_TELEMETRY_REFUSAL_LOG_H_
