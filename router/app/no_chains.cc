// For builds without chains/: adds no chains to the router.
#include "router/app/program_chains.h"

namespace bfio::router {

SetChains AddChainOptions(OptionTable&) {
  return [](RouterOptions&) {};
}

}  // namespace bfio::router
