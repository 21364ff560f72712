#include "router/core/scheduler/worker_speeds.h"

#include <algorithm>
#include <cmath>

namespace bfio::core {
namespace {

bool IsKnown(const WorkerCost& cost) {
  if (!cost.estimate || !cost.estimate->tl || !cost.estimate->c) return false;
  const FittedValue& tl = *cost.estimate->tl;
  return tl.value > 0 && tl.standard_error <= WorkerSpeeds::kKnown * tl.value;
}

double Time(const WorkerTime& time, double load) {
  return time.time_offset + time.time_per_token * load;
}

double MeanLoad(absl::Span<const WorkerCost> costs) {
  double sum = 0;
  for (const WorkerCost& cost : costs) sum += static_cast<double>(std::max<int64_t>(0, cost.load_tokens));
  return sum / static_cast<double>(costs.size());
}

// Largest difference between two estimates of a worker's time near the workers' load, divided by an ordinary
// worker's step time at that load.
double Difference(absl::Span<const WorkerTime> a, absl::Span<const WorkerTime> b, double load, double step) {
  double most = 0;
  for (const double at : {0.5 * load, load, 1.5 * load}) {
    // A change that is equal for all workers changes no plan.
    double shift = 0;
    for (size_t g = 0; g < a.size(); ++g) shift += Time(a[g], at) - Time(b[g], at);
    shift /= static_cast<double>(a.size());
    for (size_t g = 0; g < a.size(); ++g) {
      most = std::max(most, std::abs(Time(a[g], at) - Time(b[g], at) - shift));
    }
  }
  return most / std::max(1.0, step);
}

struct Wish {
  std::vector<WorkerTime> times;
  // The part of an ordinary worker's step that does not depend on load, in its tokens.
  double fixed_tokens = 0;
};

Wish Wanted(absl::Span<const WorkerCost> costs) {
  Wish wish{std::vector<WorkerTime>(costs.size())};
  std::vector<size_t> known;
  for (size_t g = 0; g < costs.size(); ++g) {
    if (IsKnown(costs[g])) known.push_back(g);
  }
  if (known.size() < 2) return wish;
  std::sort(known.begin(), known.end(),
            [&](size_t a, size_t b) { return costs[a].estimate->tl->value < costs[b].estimate->tl->value; });
  const StepCostEstimate& ordinary = *costs[known[(known.size() - 1) / 2]].estimate;
  const double tl = ordinary.tl->value;
  double least = ordinary.c->value;
  for (const size_t g : known) least = std::min(least, costs[g].estimate->c->value);
  const auto offset = [&](double c) { return std::min((c - least) / tl, WorkerSpeeds::kMostOffset); };
  wish.fixed_tokens = ordinary.c->value / tl;
  for (WorkerTime& time : wish.times) time.time_offset = offset(ordinary.c->value);
  for (const size_t g : known) {
    const StepCostEstimate& own = *costs[g].estimate;
    wish.times[g].time_per_token =
        std::clamp(own.tl->value / tl, 1 / WorkerSpeeds::kMost, WorkerSpeeds::kMost);
    wish.times[g].time_offset = offset(own.c->value);
  }
  return wish;
}

}  // namespace

std::vector<WorkerTime> TimesOf(absl::Span<const WorkerCost> costs, absl::Span<const WorkerTime> present) {
  if (costs.empty()) return {};
  const std::vector<WorkerTime> equal(costs.size());
  const double load = MeanLoad(costs);
  Wish wish = Wanted(costs);
  const double step = wish.fixed_tokens + load;
  if (Difference(wish.times, equal, load, step) < WorkerSpeeds::kEqual) wish.times = equal;
  if (Difference(wish.times, present, load, step) < WorkerSpeeds::kStep)
    wish.times.assign(present.begin(), present.end());
  return std::move(wish.times);
}

std::vector<double> ServiceTimesOf(absl::Span<const double> told, absl::Span<const WorkerCost> costs,
                                   absl::Span<const double> present) {
  if (told.empty()) return {};
  if (const double slowest = *std::max_element(told.begin(), told.end()); slowest > 0) {
    std::vector<double> times(told.begin(), told.end());
    for (double& time : times) time = time > 0 ? time : slowest;
    return times;
  }
  if (costs.empty()) return {present.begin(), present.end()};
  std::vector<double> times(costs.size(), 1.0);
  if (!std::all_of(costs.begin(), costs.end(), IsKnown)) return times;
  // Without load, a worker whose steps have no fixed cost would take no time.
  const double load = std::max(1.0, MeanLoad(costs));
  for (size_t g = 0; g < costs.size(); ++g)
    times[g] = std::max(0.0, costs[g].estimate->c->value) + costs[g].estimate->tl->value * load;
  const double least = *std::min_element(times.begin(), times.end());
  double change = 0;
  for (size_t g = 0; g < times.size(); ++g) {
    times[g] = std::min(times[g] / least, WorkerSpeeds::kMost);
    change = std::max(change, std::abs(times[g] - present[g]) / present[g]);
  }
  return change < WorkerSpeeds::kStep ? std::vector<double>(present.begin(), present.end()) : times;
}

}  // namespace bfio::core
