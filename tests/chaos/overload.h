// What a group does under ten times its load.
#ifndef BFIO_TESTS_CHAOS_OVERLOAD_H_
#define BFIO_TESTS_CHAOS_OVERLOAD_H_

#include "absl/time/time.h"

namespace bfio::chaos {

struct OverloadOptions {
  int workers = 4;
  // The load against capacity, and how long.
  double factor = 10;
  absl::Duration duration = absl::Seconds(60);
  // The router's --max_waiting: what bounds waits.
  int max_waiting = 256;
};

// Measures capacity under a load of 1.5 times of it, then the overload. Prints throughput against capacity,
// latency of refusals, waits of what was accepted, memory. Exit code: 1 when throughput is below 95 % of
// capacity, a stream broke a promise, or memory grew.
int MeasureOverload(const OverloadOptions& options);

}  // namespace bfio::chaos

#endif  // BFIO_TESTS_CHAOS_OVERLOAD_H_
