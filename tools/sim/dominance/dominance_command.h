// bfio_sim dominance: its flags, and the run.
#ifndef BFIO_TOOLS_SIM_DOMINANCE_DOMINANCE_COMMAND_H_
#define BFIO_TOOLS_SIM_DOMINANCE_DOMINANCE_COMMAND_H_

#include <string>

#include "absl/status/status.h"
#include "tools/sim/run/options.h"

namespace bfio::sim {

struct DominanceCommand {
  // Settings shared by all runs.
  SimOptions base;
  // Trace files, separated by commas; may be empty.
  std::string traces;
  // Baselines, separated by commas; empty for all.
  std::string policies;
  bool json = false;
};

// Prints the table, or the JSON object, on standard output, and progress on standard error.
absl::Status RunDominanceCommand(const DominanceCommand& command);

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_DOMINANCE_DOMINANCE_COMMAND_H_
