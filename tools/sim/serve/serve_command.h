// bfio_sim serve and bfio_sim serve-grid.
#ifndef BFIO_TOOLS_SIM_SERVE_SERVE_COMMAND_H_
#define BFIO_TOOLS_SIM_SERVE_SERVE_COMMAND_H_

#include "absl/status/status.h"

namespace bfio::sim {

// One run of a rule.
absl::Status RunServeCommand();
// A rule against all others, each with its best budget in hindsight.
absl::Status RunServeGridCommand();

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_SERVE_SERVE_COMMAND_H_
