// `bfio_sim` without a subcommand: each policy on one workload, as a table or JSON lines.
//
// Threads: call from main after the flags are parsed.
#ifndef BFIO_TOOLS_SIM_RUN_COMMAND_H_
#define BFIO_TOOLS_SIM_RUN_COMMAND_H_

#include "absl/status/status.h"

namespace bfio::sim {

absl::Status RunPolicies();

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_RUN_COMMAND_H_
