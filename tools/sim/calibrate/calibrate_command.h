// bfio_sim calibrate: the simulator's step cost, from measured steps.
//
// Threads: call from main after the flags are parsed.
#ifndef BFIO_TOOLS_SIM_CALIBRATE_CALIBRATE_COMMAND_H_
#define BFIO_TOOLS_SIM_CALIBRATE_CALIBRATE_COMMAND_H_

#include "absl/status/status.h"

namespace bfio::sim {

// Fits the cost of a step to the step logs named by --steps and prints it. NOT_FOUND or INVALID_ARGUMENT when
// they cannot be read, are not step logs, or do not determine the cost.
absl::Status RunCalibrateCommand();

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_CALIBRATE_CALIBRATE_COMMAND_H_
