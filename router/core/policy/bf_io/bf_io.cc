#include "router/core/policy/bf_io/bf_io.h"

#include "router/core/policy/snapshot_instance.h"

namespace bfio::core {

void BfIoPolicy::Decide(const Snapshot& snapshot, Decision& decision) {
  free_.Reset(snapshot);
  if (free_.free_slots() == 0 || snapshot.waiting.empty()) return;
  FillInstance(snapshot, free_, horizon_, instance_);
  SetDiscounts();
  if (settings_.objective != ObjectiveKind::kPaper) {
    valuation_.Apply(snapshot, instance_);
    ScaleWeights();
  }
  const Solution& solution = probe_.Solve(solver_, instance_, stop_);
  decision.stopped_early = solver_.statistics().CutShort();
  decision.gap = probe_.gap();
  for (int32_t i = 0; i < static_cast<int32_t>(solution.worker_of.size()); ++i) {
    if (solution.worker_of[i] != kUnassigned) decision.assignments.push_back({i, solution.worker_of[i]});
  }
}

void BfIoPolicy::SetDiscounts() {
  double discount = 1;
  for (int32_t h = 0; instance_.horizon > 0 && h < instance_.steps(); ++h, discount *= discount_) {
    instance_.discount.push_back(discount);
  }
}

// Weights are scaled for the squares of one step; a horizon has the squares of several.
void BfIoPolicy::ScaleWeights() {
  if (instance_.horizon == 0) return;
  double steps = 0;
  for (int32_t h = 0; h < instance_.steps(); ++h) steps += instance_.Discount(h);
  for (SolverItem& item : instance_.items) item.weight *= steps;
}

}  // namespace bfio::core
