// The exact solution of small instances, by enumeration.
//
// Purpose: the reference of the solver's tests. Of the choices that admit as many items as slots and KV
// capacity allow, the most urgent class first, the one with the least objective: the BF-IO paper's Algorithm
// 1, solved literally. Any horizon, any objective. Cost: (G + 1)^|items| evaluations of O((G + |items|) H);
// meant for G <= 3 and up to a dozen items. Threads: any, no state.
#pragma once

#include <cstdint>
#include <vector>

#include "router/core/solver/instance.h"

namespace bfio::core {

struct ExactAnswer {
  Solution solution;
  double objective = 0;
  int64_t admitted = 0;
  // Number of admitted items by class, the most urgent first.
  std::vector<int64_t> admitted_by_class;
};

// REQUIRES: at least one worker.
ExactAnswer SolveExhaustively(const Instance& instance, const SolverSettings& settings);

}  // namespace bfio::core
