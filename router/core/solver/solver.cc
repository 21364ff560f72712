#include "router/core/solver/solver.h"

#include "router/core/solver/construction.h"

namespace bfio::core {

const Solution& Solver::Solve(const Instance& instance, const StopSignal& stop) {
  statistics_ = {};
  Run run(settings_.max_evaluations, stop, statistics_);
  allocation_.Reset(instance, solution_.worker_of);
  if (instance.Target() == 0) {
    statistics_.converged = true;
    return solution_;
  }
  Construct(allocation_, order_);
  if (Lean(instance)) SolveLean(instance, run);
  // After a lean descent only the enumeration is left to do.
  if (settings_.objective == ObjectiveKind::kPaper) {
    SolveWith(paper_, search_paper_, run);
  } else {
    SolveWith(quadratic_, search_quadratic_, run);
  }
  return solution_;
}

bool Solver::Lean(const Instance& instance) const {
  return settings_.objective == ObjectiveKind::kSquare && instance.horizon == 0 && instance.EqualWorkers();
}

void Solver::SolveLean(const Instance& instance, Run& run) {
  loads_.clear();
  for (int32_t g = 0; g < allocation_.workers(); ++g) loads_.push_back(allocation_.load(g));
  square_.Reset(instance, loads_);
  statistics_.converged = improvement_.Descend(square_, allocation_, run);
}

template <class Pricing>
void Solver::SolveWith(Pricing& pricing, Search<Pricing>& search, Run& run) {
  const Instance& instance = allocation_.instance();
  const bool lean = Lean(instance);
  if (!lean) {
    terms_.Reset(instance);
    pricing.Reset(instance, terms_, allocation_);
    index_.Reset(instance, allocation_);
    statistics_.converged = search.Descend(pricing, allocation_, index_, run);
  }
  // Swaps may have made room in some worker's KV.
  FillInOrder(allocation_);
  if (!Enumeration::Affordable(instance, run)) return;
  terms_.Reset(instance);
  pricing.Reset(instance, terms_, allocation_);
  enumeration_.Improve(instance, pricing, run, solution_);
  statistics_.exact = true;
}

}  // namespace bfio::core
