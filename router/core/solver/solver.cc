#include "router/core/solver/solver.h"

#include "router/core/solver/bound.h"
#include "router/core/solver/construction.h"

namespace bfio::core {

const Solution& Solver::Solve(const Instance& instance, const StopSignal& stop) {
  statistics_ = {};
  Run run(settings_.max_evaluations, stop, statistics_);
  allocation_.Reset(instance, solution_.worker_of);
  if (settings_.objective == ObjectiveKind::kPaper) {
    SolveWith(paper_, search_paper_, run);
  } else {
    SolveWith(square_, search_square_, run);
  }
  if (settings_.bound) {
    statistics_.objective = Evaluate(instance, settings_, solution_);
    // The objective of an optimal plan is its own bound.
    if (statistics_.exact) statistics_.lower_bound = statistics_.objective;
  }
  return solution_;
}

template <class Pricing>
void Solver::SolveWith(Pricing& pricing, Search<Pricing>& search, Run& run) {
  const Instance& instance = allocation_.instance();
  const auto reset = [&] {
    terms_.Reset(instance);
    pricing.Reset(instance, terms_, allocation_);
    index_.Reset(instance, allocation_);
  };
  if (settings_.bound) {
    reset();
    statistics_.lower_bound = LowerBound(instance, pricing, index_);
  }
  if (instance.Target() == 0) {
    statistics_.converged = true;
    return;
  }
  Construct(allocation_, order_, run);
  if (run.Stopped()) return;
  reset();
  statistics_.converged = search.Descend(pricing, allocation_, index_, run);
  search.Escape(settings_.kicks);
  // Swaps may have freed KV on a worker.
  FillInOrder(allocation_, run);
  if (!Enumeration::Affordable(instance, run)) return;
  reset();
  statistics_.exact = enumeration_.Improve(instance, pricing, run, solution_);
}

}  // namespace bfio::core
