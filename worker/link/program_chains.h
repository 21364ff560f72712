// Whether this program serves parts of models in chains: the one place where bfio_worker meets chains/.
//
// chains/worker/program_chains.cc implements it, or worker/link/no_chains.cc in a build without BFIO_CHAINS.
#ifndef BFIO_WORKER_LINK_PROGRAM_CHAINS_H_
#define BFIO_WORKER_LINK_PROGRAM_CHAINS_H_

#include <memory>

#include "worker/link/part_server.h"

namespace bfio::worker {

// By the flags of chains, if there are any; null: an ordinary worker.
std::shared_ptr<const PartServer> PartServerFromFlags();

}  // namespace bfio::worker

#endif  // BFIO_WORKER_LINK_PROGRAM_CHAINS_H_
