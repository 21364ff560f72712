// The solver's objective, and its work limits.
//
// Threads: any, plain data.
#ifndef BFIO_ROUTER_CORE_SOLVER_SETTINGS_H_
#define BFIO_ROUTER_CORE_SOLVER_SETTINGS_H_

#include <cstdint>

namespace bfio::core {

// T_g(h) is worker g's time h steps ahead with the items placed on it, d_h the discount (instance.h).
enum class ObjectiveKind {
  // J = sum_h d_h (G max_g T_g(h) - sum_g T_g(h)): the paper's imbalance, tokens.
  kPaper,
  // sum_h d_h sum_g (T_g(h) - target(h))^2 - sum of the admitted weights, tokens^2. For given items this is
  // the squared deviation from the mean. The target determines how much load is admitted, the weights which
  // requests are urgent.
  kSquare,
};

struct SolverSettings {
  ObjectiveKind objective = ObjectiveKind::kSquare;
  // Work budget, in evaluated exchanges (a few nanoseconds each; an exchange over a horizon counts as
  // several). Counted, not timed, so the same instance gives the same plan on a slower machine.
  int64_t max_evaluations = 400'000;
  // Number of attempts to leave a local optimum, within the budget; matters with few free slots and the
  // paper's J.
  int32_t kicks = 2;
  // Computes a lower bound, and so the gap, in the statistics. Costs about as much as one round of the
  // search.
  bool bound = false;
};

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_SOLVER_SETTINGS_H_
