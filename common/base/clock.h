// The monotonic clock as absl::Time. Deadlines and latencies that do not depend on changes of the wall clock.
// The zero point is arbitrary (the machine's start): use only differences. Not for router/core, which must
// not read clocks. Any thread.
#pragma once

#include <time.h>

#include "absl/time/time.h"

namespace bfio {

inline absl::Time MonotonicNow() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return absl::UnixEpoch() + absl::Seconds(now.tv_sec) + absl::Nanoseconds(now.tv_nsec);
}

}  // namespace bfio
