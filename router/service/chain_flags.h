// The flags about chains of servers.
#ifndef BFIO_ROUTER_SERVICE_CHAIN_FLAGS_H_
#define BFIO_ROUTER_SERVICE_CHAIN_FLAGS_H_

#include "absl/status/status.h"
#include "router/service/options.h"

namespace bfio::router {

// INVALID_ARGUMENT, naming the flag. REQUIRES: options.step_timeout is set.
absl::Status ReadChainFlags(RouterOptions& options);

}  // namespace bfio::router

#endif  // BFIO_ROUTER_SERVICE_CHAIN_FLAGS_H_
