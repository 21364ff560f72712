// Whether this program composes chains of servers: the one place where bfio_router meets chains/.
//
// chains/router/program_chains.cc implements it, or router/app/no_chains.cc in a build without BFIO_CHAINS.
#ifndef BFIO_ROUTER_APP_PROGRAM_CHAINS_H_
#define BFIO_ROUTER_APP_PROGRAM_CHAINS_H_

#include "absl/status/status.h"
#include "router/app/options.h"

namespace bfio::router {

// Reads the flags of chains, if there are any: sets `worker_port_service`, and `group_kind` to independent
// groups where chains are composed. INVALID_ARGUMENT, naming the flag. REQUIRES: step_timeout and
// worker_speeds are set.
absl::Status ReadChainFlags(RouterOptions& options);

}  // namespace bfio::router

#endif  // BFIO_ROUTER_APP_PROGRAM_CHAINS_H_
