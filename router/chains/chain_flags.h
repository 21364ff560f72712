// The flags about chains of servers, and whether workers share a barrier.
#ifndef BFIO_ROUTER_CHAINS_CHAIN_FLAGS_H_
#define BFIO_ROUTER_CHAINS_CHAIN_FLAGS_H_

#include "absl/status/status.h"
#include "router/app/options.h"

namespace bfio::router {

// INVALID_ARGUMENT, naming the flag. REQUIRES: step_timeout, plan_mode, policy and
// worker_speeds are set.
absl::Status ReadChainFlags(RouterOptions& options);

}  // namespace bfio::router

#endif  // BFIO_ROUTER_CHAINS_CHAIN_FLAGS_H_
