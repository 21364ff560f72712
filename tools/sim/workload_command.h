// `bfio_sim workload`: the requests of --trace or --profile, as a trace of generic columns; with --json what
// they ask of a group.
//
// Purpose: scripts read and rewrite workloads without a reader of every trace format, and load means the same
// to them. Threads: call from main after the flags are parsed.
#ifndef BFIO_TOOLS_SIM_WORKLOAD_COMMAND_H_
#define BFIO_TOOLS_SIM_WORKLOAD_COMMAND_H_

#include "absl/status/status.h"

namespace bfio::sim {

absl::Status RunWorkloadCommand();

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_WORKLOAD_COMMAND_H_
