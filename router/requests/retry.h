// Retry delays for clients that cannot be served now. One place for the delays in refusals and in errors of
// lost requests. Pure; any thread.
#pragma once

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/retry_delay.h"

namespace bfio::router {

// RESOURCE_EXHAUSTED: the pool, memory or a tenant's share is full. When a request will end is unknown.
inline constexpr absl::Duration kFullRetry = absl::Milliseconds(500);
// UNAVAILABLE, and clients that were cut off: most faults are either repaired within this time or last long.
inline constexpr absl::Duration kFailedRetry = absl::Seconds(1);

// REQUIRES: !status.ok().
[[nodiscard]] inline absl::Status WithRetry(absl::Status status, absl::Duration delay) {
  SetRetryDelay(status, delay);
  return status;
}

// The status of every call while the router drains.
inline absl::Status ShuttingDown() {
  return WithRetry(absl::UnavailableError("the router is shutting down"), kFailedRetry);
}

}  // namespace bfio::router
