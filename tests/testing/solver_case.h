// Random instances of the integer program, and a feasibility check that is independent of the solver.
//
// Purpose: inputs and checks for the tests of the solver.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/rng.h"
#include "router/core/solver/instance.h"

namespace bfio::core {

// For suites over every objective.
inline auto EveryObjective() {
  return ::testing::Values(ObjectiveKind::kPaper, ObjectiveKind::kSquare);
}
inline std::string ObjectiveName(const ::testing::TestParamInfo<ObjectiveKind>& info) {
  return info.param == ObjectiveKind::kPaper ? "Paper" : "Square";
}

// A KV capacity that never binds.
inline constexpr int64_t kAmple = int64_t{1} << 40;

// Features that a random instance may have; each allowed one is drawn in about half of the instances.
struct SolverCaseLimits {
  int max_workers = 6;
  int max_items = 12;
  int max_slots = 3;
  int max_horizon = 5;
  // Loads are below this.
  int64_t max_load = 1000;
  bool tight_kv = true;
  bool unequal_workers = true;
  bool priorities = true;
  bool weights = true;
};

Instance RandomInstance(const SolverCaseLimits& limits, Rng& rng);

// Gives the instance H steps of lookahead: loads that grow and fall, and `curves` survival curves (steps, as
// of an oracle, or smooth ones).
void AddHorizon(Instance& instance, int32_t horizon, int32_t curves, bool steps, Rng& rng);

// Empty when the plan is feasible, leaves no item waiting that still fits, and admits no lower class before a
// higher when KV capacity is ample; otherwise a description of the violation.
std::string Infeasibility(const Instance& instance, const Solution& solution);

// The exact solution of small instances, by enumeration.
//
// Purpose: the reference of the solver's tests. Of the choices that admit as many items as slots and KV
// capacity allow, the most urgent class first, the one with the least objective: the BF-IO paper's Algorithm
// 1, solved literally. Any horizon, any objective. Cost: (G + 1)^|items| evaluations of O((G + |items|) H);
// meant for G <= 3 and up to a dozen items. Threads: any, no state.
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
