// A bfio_worker without chains/.
#include "worker/link/program_chains.h"

namespace bfio::worker {

std::shared_ptr<const PartServer> PartServerFromFlags() {
  return nullptr;
}

}  // namespace bfio::worker
