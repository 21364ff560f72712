// Workloads that arrive at a share of what the group can serve.
//
// Purpose: one meaning of "at 70 % load" for all experiments. Threads: any, no state.
#ifndef BFIO_TOOLS_SIM_EXPERIMENT_ARRIVALS_H_
#define BFIO_TOOLS_SIM_EXPERIMENT_ARRIVALS_H_

#include <string>

#include "tools/sim/experiment/experiment.h"

namespace bfio::sim {

// By seed: the workload from another start with its own arrivals, or with Poisson ones where it has none.
TraceOfSeed ArrivingBySeed(const Workload& workload);

// Which of the two.
std::string ArrivalsName(const Workload& workload);

// What options.load must be for ArrivingBySeed's traces to come at `share` of FullSlotRequestRate.
double LoadForShare(const Trace& trace, const SimOptions& options, double share);

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_EXPERIMENT_ARRIVALS_H_
