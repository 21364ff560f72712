// What the solver minimises, and how hard it may try.
//
// Threads: any, plain data.
#ifndef BFIO_ROUTER_CORE_SOLVER_SETTINGS_H_
#define BFIO_ROUTER_CORE_SOLVER_SETTINGS_H_

#include <cstdint>

namespace bfio::core {

// T_g(h) is worker g's time h steps ahead with what it is given, d_h the discount (instance.h).
enum class ObjectiveKind {
  // J = sum_h d_h (G max_g T_g(h) - sum_g T_g(h)): the paper's imbalance, tokens.
  kPaper,
  // sum_h d_h sum_g (T_g(h) - target(h))^2 - sum of the weights admitted, tokens^2. With the items given this
  // is the squared deviation from the mean; the target says how much load to admit, the weights which
  // requests are urgent.
  kSquare,
  // The same, but a completion frees a slot that the next decision refills: worker g counts at step h only
  // with the probability that it has had no completion, quiet_g(h) times the survival of each item it is
  // given, and then at the load it has grown to.
  kRefill,
};

struct SolverSettings {
  ObjectiveKind objective = ObjectiveKind::kSquare;
  // Work budget, in evaluated exchanges (some nanoseconds each; an exchange over a horizon counts for more).
  // Counted, not timed: the same instance gives the same answer on a slow machine.
  int64_t max_evaluations = 400'000;
  // How often the search tries to leave a local optimum, within the budget; matters for few free slots and
  // the paper's J.
  int32_t kicks = 2;
  // Compute a lower bound, hence the gap, in the statistics. Costs about as much as one round of the search.
  bool bound = false;
};

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_SOLVER_SETTINGS_H_
