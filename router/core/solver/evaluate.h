// The objectives by their definition (instance.h), computed from scratch: the reference for the faster
// computations. Threads: any, no state.
#pragma once

#include <vector>

#include "router/core/solver/instance.h"

namespace bfio::core {

// The objective's value for a plan, which Solver minimises. REQUIRES: at least one worker. Cost: O((G +
// |items|) H).
double Evaluate(const Instance& instance, const SolverSettings& settings, const Solution& solution);

// target(h), h = 0 .. H: Instance::target_ahead. When that is empty: target_load plus the mean change of the
// workers' times until step h, from `ahead` and the pool's mean item.
void FindTargets(const Instance& instance, std::vector<double>& targets);

}  // namespace bfio::core
