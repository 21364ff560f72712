#include "router/core/solver/evaluate.h"

#include <algorithm>

namespace bfio::core {
namespace {

// By worker: its time h steps ahead with the items placed on it.
std::vector<double> Times(const Instance& instance, const Solution& solution, int32_t h) {
  std::vector<double> times;
  for (size_t g = 0; g < instance.workers.size(); ++g)
    times.push_back(instance.workers[g].TimeAt(instance.LoadAhead(g, h)));
  for (size_t i = 0; i < instance.items.size(); ++i) {
    const int32_t g = solution.worker_of[i];
    if (g == kUnassigned) continue;
    const SolverItem& item = instance.items[i];
    times[g] += instance.workers[g].time_per_token * static_cast<double>(item.LoadOn(g) + h) *
                instance.Survival(instance.CurveOf(item), h);
  }
  return times;
}

// The term of J at step h.
double PaperStep(const Instance& instance, const Solution& solution, int32_t h) {
  const std::vector<double> times = Times(instance, solution, h);
  const double max = *std::max_element(times.begin(), times.end());
  double gaps = 0;
  for (double time : times) gaps += max - time;
  return gaps;
}

double SquareStep(const Instance& instance, const Solution& solution, int32_t h, double target) {
  double squares = 0;
  for (double time : Times(instance, solution, h)) squares += (time - target) * (time - target);
  return squares;
}

// Change of the workers' total time from step 0 to step h.
double Growth(const Instance& instance, int32_t h) {
  double growth = 0;
  for (size_t g = 0; g < instance.workers.size(); ++g) {
    growth += instance.workers[g].time_per_token * (instance.LoadAhead(g, h) - instance.LoadAhead(g, 0));
  }
  return growth;
}

// Change of the time that the pool's mean item adds to the mean worker, from step 0 to step h.
double ItemGrowth(const Instance& instance, int32_t h) {
  const double rate = instance.MeanRate();
  if (instance.items.empty()) return rate * h;
  double growth = 0;
  for (const SolverItem& item : instance.items) {
    const double load = static_cast<double>(item.load);
    growth += rate * ((load + h) * instance.Survival(instance.CurveOf(item), h) - load);
  }
  return growth / static_cast<double>(instance.items.size());
}

}  // namespace

void FindTargets(const Instance& instance, std::vector<double>& targets) {
  targets.assign(instance.target_ahead.begin(), instance.target_ahead.end());
  if (!targets.empty()) return;
  targets.push_back(instance.target_load);
  const double admitted = static_cast<double>(instance.Target());
  for (int32_t h = 1; h <= instance.horizon; ++h) {
    targets.push_back(instance.target_load + (Growth(instance, h) + admitted * ItemGrowth(instance, h)) /
                                                 static_cast<double>(instance.workers.size()));
  }
}

double Evaluate(const Instance& instance, const SolverSettings& settings, const Solution& solution) {
  const bool paper = settings.objective == ObjectiveKind::kPaper;
  std::vector<double> targets;
  if (!paper) FindTargets(instance, targets);
  double value = 0;
  for (int32_t h = 0; h <= instance.horizon; ++h) {
    const double step =
        paper ? PaperStep(instance, solution, h) : SquareStep(instance, solution, h, targets[h]);
    value += instance.Discount(h) * step;
  }
  for (size_t i = 0; !paper && i < instance.items.size(); ++i) {
    if (solution.worker_of[i] != kUnassigned) value -= instance.items[i].weight;
  }
  return value;
}

}  // namespace bfio::core
