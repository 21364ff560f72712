// Measures a group under ten times its load.
#ifndef BFIO_TESTS_CHAOS_OVERLOAD_H_
#define BFIO_TESTS_CHAOS_OVERLOAD_H_

#include "absl/time/time.h"

namespace bfio::chaos {

struct OverloadOptions {
  int workers = 4;
  // Load as a multiple of capacity, and its duration.
  double factor = 10;
  absl::Duration duration = absl::Seconds(60);
  // The router's --max_waiting, which bounds waits.
  int max_waiting = 256;
};

// Measures capacity under 1.5 times the estimated load, then the overload. Prints throughput against
// capacity, latency of refusals, waits of accepted requests, memory. Exit code: 1 when throughput is below 95
// % of capacity, a stream broke a guarantee, or memory grew.
int MeasureOverload(const OverloadOptions& options);

}  // namespace bfio::chaos

#endif  // BFIO_TESTS_CHAOS_OVERLOAD_H_
