// `bfio_sim workload`: writes the requests of --trace or --profile as a trace with generic columns; with
// --json, the demand that they place on a group.
//
// Purpose: scripts can read and change workloads without a reader for every trace format, and use the same
// definition of load. Threads: call from main after the flags are parsed.
#ifndef BFIO_TOOLS_SIM_WORKLOAD_COMMAND_H_
#define BFIO_TOOLS_SIM_WORKLOAD_COMMAND_H_

#include "absl/status/status.h"

namespace bfio::sim {

absl::Status RunWorkloadCommand();

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_WORKLOAD_COMMAND_H_
