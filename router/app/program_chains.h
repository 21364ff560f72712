// Adds chains of servers to the program: the only place where bfio_router refers to chains/.
// chains/router/program_chains.cc implements it, or router/app/no_chains.cc in a build without BFIO_CHAINS.
#pragma once

#include <functional>

#include "common/config/options.h"
#include "router/app/options.h"

namespace bfio::router {

// If the options compose chains: sets `worker_port_service`, and `group_kind` to independent groups.
// REQUIRES: all options are read.
using SetChains = std::function<void(RouterOptions& options)>;

// Adds the options of chains, if there are any.
SetChains AddChainOptions(OptionTable& table);

}  // namespace bfio::router
