#include "router/core/solver/evaluate.h"

#include <algorithm>

namespace bfio::core {
namespace {

// Tokens that item i adds to worker g, h steps ahead.
double Added(const Instance& instance, size_t i, int32_t g, int32_t h) {
  const SolverItem& item = instance.items[i];
  return (static_cast<double>(item.LoadOn(g)) + h) * instance.Survival(instance.CurveOf(item), h);
}

// Step h of J.
double PaperStep(const Instance& instance, const Solution& solution, int32_t h) {
  std::vector<double> tokens;
  for (size_t g = 0; g < instance.workers.size(); ++g) tokens.push_back(instance.LoadAhead(g, h));
  for (size_t i = 0; i < instance.items.size(); ++i) {
    const int32_t g = solution.worker_of[i];
    if (g != kUnassigned) tokens[g] += Added(instance, i, g, h);
  }
  for (size_t g = 0; g < tokens.size(); ++g) tokens[g] = instance.workers[g].Time(tokens[g]);
  const double max = *std::max_element(tokens.begin(), tokens.end());
  double gaps = 0;
  for (double time : tokens) gaps += max - time;
  return gaps;
}

double SquareStep(const Instance& instance, const Solution& solution, int32_t h, double target) {
  std::vector<double> tokens;
  for (size_t g = 0; g < instance.workers.size(); ++g) tokens.push_back(instance.LoadAhead(g, h));
  for (size_t i = 0; i < instance.items.size(); ++i) {
    const int32_t g = solution.worker_of[i];
    if (g != kUnassigned) tokens[g] += Added(instance, i, g, h);
  }
  double squares = 0;
  for (size_t g = 0; g < tokens.size(); ++g) {
    const double x = instance.workers[g].Time(tokens[g]) - target;
    squares += x * x;
  }
  return squares;
}

double RefillStep(const Instance& instance, const Solution& solution, int32_t h, double target) {
  std::vector<double> tokens, weights;
  for (size_t g = 0; g < instance.workers.size(); ++g) {
    tokens.push_back(static_cast<double>(instance.workers[g].load) + instance.workers[g].active * h);
    weights.push_back(instance.QuietAhead(g, h));
  }
  for (size_t i = 0; i < instance.items.size(); ++i) {
    const int32_t g = solution.worker_of[i];
    if (g == kUnassigned) continue;
    tokens[g] += static_cast<double>(instance.items[i].LoadOn(g)) + h;
    weights[g] *= instance.Survival(instance.CurveOf(instance.items[i]), h);
  }
  double squares = 0;
  for (size_t g = 0; g < tokens.size(); ++g) {
    const double x = instance.workers[g].Time(tokens[g]) - target;
    squares += weights[g] * x * x;
  }
  return squares;
}

double MeanRate(const Instance& instance) {
  double rates = 0;
  for (const SolverWorker& worker : instance.workers) rates += worker.time_per_token;
  return rates / static_cast<double>(instance.workers.size());
}

// What the workers have more at h than at 0, in all.
double Growth(const Instance& instance, ObjectiveKind kind, int32_t h) {
  double growth = 0;
  for (size_t g = 0; g < instance.workers.size(); ++g) {
    const double tokens = kind == ObjectiveKind::kRefill
                              ? static_cast<double>(instance.workers[g].active) * h
                              : instance.LoadAhead(g, h) - instance.LoadAhead(g, 0);
    growth += instance.workers[g].time_per_token * tokens;
  }
  return growth;
}

// What the pool's mean item has more at h than at 0.
double ItemGrowth(const Instance& instance, ObjectiveKind kind, int32_t h) {
  if (kind == ObjectiveKind::kRefill || instance.items.empty()) return h;
  double growth = 0;
  for (const SolverItem& item : instance.items) {
    const double load = static_cast<double>(item.load);
    growth += (load + h) * instance.Survival(instance.CurveOf(item), h) - load;
  }
  return growth / static_cast<double>(instance.items.size());
}

}  // namespace

void FindTargets(const Instance& instance, ObjectiveKind kind, std::vector<double>& targets) {
  targets.assign(instance.target_ahead.begin(), instance.target_ahead.end());
  if (!targets.empty()) return;
  targets.push_back(instance.target_load);
  const double admitted = static_cast<double>(instance.Target()) * MeanRate(instance);
  for (int32_t h = 1; h <= instance.horizon; ++h) {
    targets.push_back(instance.target_load +
                      (Growth(instance, kind, h) + admitted * ItemGrowth(instance, kind, h)) /
                          static_cast<double>(instance.workers.size()));
  }
}

double Evaluate(const Instance& instance, const SolverSettings& settings, const Solution& solution) {
  const bool paper = settings.objective == ObjectiveKind::kPaper;
  std::vector<double> targets;
  if (!paper) FindTargets(instance, settings.objective, targets);
  double value = 0;
  for (int32_t h = 0; h <= instance.horizon; ++h) {
    const double step = paper ? PaperStep(instance, solution, h)
                        : settings.objective == ObjectiveKind::kSquare
                            ? SquareStep(instance, solution, h, targets[h])
                            : RefillStep(instance, solution, h, targets[h]);
    value += instance.Discount(h) * step;
  }
  for (size_t i = 0; !paper && i < instance.items.size(); ++i) {
    if (solution.worker_of[i] != kUnassigned) value -= instance.items[i].worth;
  }
  return value;
}

}  // namespace bfio::core
