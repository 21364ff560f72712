// Workloads for experiments on what steps contain: arrivals at a share of what engines carry.
//
// Purpose: what the token-budget experiments share. Lengths are a workload's, drawn with replacement; times
// are Poisson. Deterministic for a seed. Threads: any, no state.
#ifndef BFIO_TOOLS_SIM_EXPERIMENT_STEP_SCENES_H_
#define BFIO_TOOLS_SIM_EXPERIMENT_STEP_SCENES_H_

#include <cstdint>
#include <vector>

#include "tools/sim/experiment/experiment.h"
#include "tools/sim/step/one_engine.h"

namespace bfio::sim {

struct StepScene {
  const Workload* workload = nullptr;
  // Of what `engines` engines of the paper's cost carry at a budget of 512, were there no barrier.
  double load = 0;
  int32_t engines = 1;
};

// By time. REQUIRES: requests >= 1, load > 0.
std::vector<StepArrival> DrawArrivals(const StepScene& scene, int64_t requests, uint64_t seed);

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_EXPERIMENT_STEP_SCENES_H_
