// What the solver minimises, and how hard it may try.
#ifndef BFIO_ROUTER_CORE_SOLVER_SETTINGS_H_
#define BFIO_ROUTER_CORE_SOLVER_SETTINGS_H_

#include <cstdint>

namespace bfio::core {

enum class ObjectiveKind {
  // J = G * max_g L_g - sum_g L_g: the paper's imbalance, tokens.
  kPaper,
  // sum_g (L_g - target_load)^2 - sum of the worths admitted, tokens^2. With the items given this is the
  // squared
  // deviation from the mean; the target says how much load to admit, the worths say whose turn it is.
  kSquare,
};

struct SolverSettings {
  ObjectiveKind objective = ObjectiveKind::kSquare;
  // Work budget, in evaluated exchanges (about a nanosecond each). Counted, not timed: the same instance
  // gives the same answer on a slow machine.
  int64_t max_evaluations = 400'000;
};

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_SOLVER_SETTINGS_H_
