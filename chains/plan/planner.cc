#include "chains/plan/planner.h"

namespace bfio::plan {

absl::StatusOr<Plan> MakePlan(const Problem& problem, const std::function<bool()>& go_on) {
  const auto candidates = core::SweepReserve(problem.servers, problem.service, problem.demand, go_on);
  if (go_on && !go_on()) return absl::CancelledError("interrupted");
  const core::ReserveCandidate* best = core::BestReserve(candidates);
  if (best == nullptr)
    return core::WhyImpossible(problem.servers, problem.service, problem.demand, candidates);
  return Plan{core::PlanWithReserve(problem.servers, problem.service, best->c, problem.demand),
              {best->lower, best->upper},
              best->meets};
}

}  // namespace bfio::plan
