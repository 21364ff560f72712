// The monotonic clock as absl::Time.
//
// Purpose: deadlines and latencies that a change of the wall clock cannot disturb. The zero point is
// arbitrary (the machine's start): use differences only. Not for router/core, which reads no clock. Any
// thread.
#ifndef BFIO_COMMON_BASE_CLOCK_H_
#define BFIO_COMMON_BASE_CLOCK_H_

#include <time.h>

#include "absl/time/time.h"

namespace bfio {

inline absl::Time MonotonicNow() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return absl::UnixEpoch() + absl::Seconds(now.tv_sec) + absl::Nanoseconds(now.tv_nsec);
}

}  // namespace bfio

#endif  // BFIO_COMMON_BASE_CLOCK_H_
