#include "router/core/solver/gap_probe.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace bfio::core {
namespace {

constexpr int64_t kMostPairs = 20'000;

// The largest step time under the plan.
double LargestTime(const Instance& instance, const Solution& solution) {
  std::vector<double> times;
  for (const WorkerView& worker : instance.workers) {
    times.push_back(worker.TimeAt(static_cast<double>(worker.load_tokens)));
  }
  for (size_t i = 0; i < solution.worker_of.size(); ++i) {
    const int32_t g = solution.worker_of[i];
    if (g == kUnassigned) continue;
    times[g] += instance.workers[g].load_rate() * static_cast<double>(instance.items[i].LoadOn(g));
  }
  return std::max(0.0, *std::max_element(times.begin(), times.end()));
}

// Whether the bound visits so few pairs that its cost in a decision is negligible.
bool Cheap(const Instance& instance, ObjectiveKind kind) {
  int64_t pairs = 0;
  for (const WorkerView& worker : instance.workers) {
    if (worker.free_slots < 1) continue;
    const bool each = kind == ObjectiveKind::kPaper && worker.free_slots == 2;
    pairs += each ? static_cast<int64_t>(instance.items.size()) : 1;
  }
  return pairs * instance.steps() <= kMostPairs;
}

double Share(const Instance& instance, const Solution& solution, ObjectiveKind kind, double gap) {
  double terms = 0;
  for (int32_t h = 0; h < instance.steps(); ++h) terms += instance.Discount(h);
  terms *= static_cast<double>(instance.workers.size());
  const double largest = LargestTime(instance, solution);
  if (largest <= 0 || terms <= 0) return 0;
  // The gap may be slightly negative, because bound and objective are summed in different orders.
  const double each = std::max(0.0, gap) / terms;
  return (kind == ObjectiveKind::kPaper ? each : std::sqrt(each)) / largest;
}

}  // namespace

const Solution& GapProbe::Solve(Solver& solver, const Instance& instance, const StopSignal& stop) {
  gap_.reset();
  const bool proven = every_ > 0 && ++since_ >= every_ && Cheap(instance, solver.settings().objective);
  if (proven) since_ = 0;
  solver.set_bound(proven);
  const Solution& solution = solver.Solve(instance, stop);
  if (!proven) return solution;
  if (const std::optional<double> gap = solver.statistics().Gap()) {
    gap_ = Share(instance, solution, solver.settings().objective, *gap);
  }
  return solution;
}

}  // namespace bfio::core
