// When a client that cannot be served now should come again.
//
// Purpose: the delays that refusals and lost requests carry, in one place. Pure; any thread.
#ifndef BFIO_ROUTER_REQUESTS_RETRY_H_
#define BFIO_ROUTER_REQUESTS_RETRY_H_

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/retry_delay.h"

namespace bfio::router {

// RESOURCE_EXHAUSTED: the pool, memory or a tenant's share is full; when a request ends is not known.
inline constexpr absl::Duration kFullRetry = absl::Milliseconds(500);
// UNAVAILABLE, and a client that was cut off: what failed is mended by then, or not for long.
inline constexpr absl::Duration kFailedRetry = absl::Seconds(1);

// REQUIRES: !status.ok().
[[nodiscard]] inline absl::Status WithRetry(absl::Status status, absl::Duration delay) {
  SetRetryDelay(status, delay);
  return status;
}

// What every call gets while the router drains.
inline absl::Status ShuttingDown() {
  return WithRetry(absl::UnavailableError("the router is shutting down"), kFailedRetry);
}

}  // namespace bfio::router

#endif  // BFIO_ROUTER_REQUESTS_RETRY_H_
