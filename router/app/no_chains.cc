// A bfio_router without chains/.
#include "router/app/program_chains.h"

namespace bfio::router {

absl::Status ReadChainFlags(RouterOptions&) {
  return absl::OkStatus();
}

}  // namespace bfio::router
