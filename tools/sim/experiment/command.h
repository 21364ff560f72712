// `bfio_sim EXPERIMENT`: runs it and writes NAME.csv, NAME.json and NAME.html.
//
// Purpose: the command line's side of the experiments. Threads: call from main after the flags are parsed.
#ifndef BFIO_TOOLS_SIM_EXPERIMENT_COMMAND_H_
#define BFIO_TOOLS_SIM_EXPERIMENT_COMMAND_H_

#include "absl/status/status.h"
#include "tools/sim/experiment/experiments.h"

namespace bfio::sim {

absl::Status RunExperiment(const ExperimentInfo& experiment);

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_EXPERIMENT_COMMAND_H_
