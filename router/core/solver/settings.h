// What the solver minimises, and how hard it may try.
#ifndef BFIO_ROUTER_CORE_SOLVER_SETTINGS_H_
#define BFIO_ROUTER_CORE_SOLVER_SETTINGS_H_

#include <cstdint>

namespace bfio::core {

enum class ObjectiveKind {
  // J = G * max_g L_g - sum_g L_g: the paper's imbalance, tokens.
  kPaper,
  // sum_g (L_g - mean)^2 - age_weight * sum of the ages admitted, tokens^2.
  kSquare,
};

struct SolverSettings {
  ObjectiveKind objective = ObjectiveKind::kSquare;
  // Square only: what one step of waiting is worth, tokens^2 per step. Positive, so that every request's turn
  // comes: what a swap can gain in balance is bounded, what waiting is worth is not (docs/decision.md).
  double age_weight = 6000;
  // Work budget, in evaluated exchanges (about a nanosecond each). Counted, not timed: the same instance
  // gives the same answer on a slow machine.
  int64_t max_evaluations = 400'000;
};

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_SOLVER_SETTINGS_H_
