// Whether this program serves parts of models in chains: the only place where bfio_worker refers to chains/.
// chains/worker/program_chains.cc implements it, or worker/link/no_chains.cc in a build without BFIO_CHAINS.
#pragma once

#include <functional>
#include <memory>

#include "common/config/options.h"
#include "worker/link/part_server.h"

namespace bfio::worker {

// Returns null for an ordinary worker. REQUIRES: all options are read.
using MakePartServer = std::function<std::shared_ptr<const PartServer>()>;

// The options of chains, if there are any.
MakePartServer AddPartServerOptions(OptionTable& table);

}  // namespace bfio::worker
