#include "router/core/solver/solver.h"

#include "router/core/solver/construction.h"

namespace bfio::core {
namespace {

template <class Objective>
double Value(Objective objective, const Instance& instance, const Solution& solution) {
  std::vector<int64_t> loads;
  for (const SolverWorker& worker : instance.workers) loads.push_back(worker.load);
  double cost = 0;
  for (size_t i = 0; i < instance.items.size(); ++i) {
    if (solution.worker_of[i] == kUnassigned) continue;
    loads[solution.worker_of[i]] += instance.items[i].LoadOn(solution.worker_of[i]);
    cost += objective.AdmitCost(instance.items[i]);
  }
  objective.Reset(instance, loads);
  return objective.Value() + cost;
}

}  // namespace

const Solution& Solver::Solve(const Instance& instance) {
  statistics_ = {};
  allocation_.Reset(instance, solution_.worker_of);
  if (instance.Target() == 0) {
    statistics_.converged = true;
    return solution_;
  }
  Construct(allocation_, order_);
  if (settings_.objective == ObjectiveKind::kSquare) {
    Search(square_, improve_square_);
  } else {
    Search(paper_, improve_paper_);
  }
  // Swaps may have made room in some worker's KV.
  FillInOrder(allocation_);
  return solution_;
}

template <class Objective>
void Solver::Search(Objective& objective, Improvement<Objective>& improvement) {
  loads_.clear();
  for (int32_t g = 0; g < allocation_.workers(); ++g) loads_.push_back(allocation_.load(g));
  objective.Reset(allocation_.instance(), loads_);
  improvement.Run(objective, allocation_, settings_.max_evaluations, statistics_);
}

double Evaluate(const Instance& instance, const SolverSettings& settings, const Solution& solution) {
  return settings.objective == ObjectiveKind::kSquare ? Value(SquareObjective(), instance, solution)
                                                      : Value(PaperObjective(), instance, solution);
}

}  // namespace bfio::core
