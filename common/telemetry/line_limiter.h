// Limits the rate of log lines that peers can cause, so that they cannot fill a disk or hide other lines. Of
// each kind of line, the first `burst` of every `period` are written. The others are only counted, and the
// next line of that kind contains their number. A kind is a short text of the program ("no token"), never one
// from a caller. Threads: any.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"

namespace bfio {

class LineLimiter {
 public:
  // Further kinds are treated as one.
  static constexpr size_t kMaxKinds = 64;

  // REQUIRES: burst is at least 1.
  LineLimiter(int burst, absl::Duration period) : burst_(burst), period_(period) {}

  // Absent: do not write the line. Otherwise the text to append to it: empty, or "; 17 more since the last
  // such line". `now` is a time of MonotonicNow() and must not decrease.
  std::optional<std::string> Pass(absl::string_view kind, absl::Time now);
  std::optional<std::string> Pass(absl::string_view kind);

 private:
  struct Kind {
    absl::Time period_end = absl::InfinitePast();
    // Lines written in the current period.
    int written = 0;
    uint64_t untold = 0;
  };
  const int burst_;
  const absl::Duration period_;
  Mutex mutex_;
  std::map<std::string, Kind, std::less<>> kinds_ ABSL_GUARDED_BY(mutex_);
};

// Logs refused callers at a limited rate, so that an attacker cannot fill a disk. The first refusal of a
// class is logged at once. Further ones within kQuiet are only counted, and the next line of that class
// contains their number. A class is a short text of the program ("client API: no token"), never one from the
// caller; `detail` may name the caller. Any thread.
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
