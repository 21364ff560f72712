// A bfio_router without chains/.
#include "router/app/program_chains.h"

namespace bfio::router {

SetChains AddChainOptions(OptionTable&) {
  return [](RouterOptions&) {};
}

}  // namespace bfio::router
