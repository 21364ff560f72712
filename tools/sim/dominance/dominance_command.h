// bfio_sim dominance: its flags, and the run.
//
// Threads: call from main after the flags are parsed.
#ifndef BFIO_TOOLS_SIM_DOMINANCE_DOMINANCE_COMMAND_H_
#define BFIO_TOOLS_SIM_DOMINANCE_DOMINANCE_COMMAND_H_

#include "absl/status/status.h"

namespace bfio::sim {

// Prints the table, or the JSON object, on standard output, and progress on standard error.
absl::Status RunDominanceCommand();

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_DOMINANCE_DOMINANCE_COMMAND_H_
