// A bfio_worker without chains/.
#include "worker/link/program_chains.h"

namespace bfio::worker {

MakePartServer AddPartServerOptions(OptionTable&) {
  return [] { return nullptr; };
}

}  // namespace bfio::worker
