#include "router/core/policy/bf_io/valuation.h"

#include <algorithm>
#include <cmath>

namespace bfio::core {
namespace {

// Found by sweeps on the Azure conversation and BurstGPT traces (docs/decision.md); flat around these values.
constexpr double kStockTilt = 1;
constexpr double kAgeWorth = 0.1;
constexpr double kAgeSquaredWorth = 0.003;
constexpr double kOverdueAges = 12;
constexpr double kGiant = 5;
// One worker in so many prepares at a time; none in a group too small to spare one.
constexpr size_t kWorkersPerPreparing = 8;
constexpr size_t kLeastPreparingGroup = 4;
// Tokens^2 per step, so that age decides between requests of one size, where S is 0.
constexpr double kLeastAgeWorth = 200;

}  // namespace

void Valuation::Apply(const Snapshot& snapshot, Instance& instance) {
  const PoolScale scale = Measure(snapshot);
  for (size_t i = 0; i < instance.items.size(); ++i) {
    const double age = static_cast<double>(Age(snapshot.waiting[i])), r = age / scale.age;
    instance.items[i].worth =
        kLeastAgeWorth * age + scale.deviation * scale.deviation * (kAgeWorth * r + kAgeSquaredWorth * r * r);
  }
  FindLevelWorkers(snapshot);
  Prepare(snapshot, scale, instance);
  SetTarget(scale, instance);
}

Valuation::PoolScale Valuation::Measure(const Snapshot& snapshot) {
  const double count = static_cast<double>(snapshot.waiting.size());
  PoolScale scale;
  youngest_enqueued_ = snapshot.waiting[0].enqueued_step;
  for (const WaitingView& request : snapshot.waiting) {
    scale.mean_load += static_cast<double>(request.prefill_tokens) / count;
    youngest_enqueued_ = std::max(youngest_enqueued_, request.enqueued_step);
  }
  numbers_.clear();
  for (const WaitingView& request : snapshot.waiting) {
    scale.deviation += std::abs(static_cast<double>(request.prefill_tokens) - scale.mean_load) / count;
    numbers_.push_back(Age(request));
  }
  // Served in order, ages would be uniform and twice their lower quartile the mean. The quartile is not moved
  // by the stock of requests that wait for their gap.
  const auto quartile = numbers_.begin() + static_cast<int64_t>((numbers_.size() - 1) / 4);
  std::nth_element(numbers_.begin(), quartile, numbers_.end());
  scale.age = std::max(1.0, 2 * static_cast<double>(*quartile));
  return scale;
}

void Valuation::FindLevelWorkers(const Snapshot& snapshot) {
  const auto load = [&](WorkerIndex g) { return snapshot.workers[g].load_tokens; };
  level_.clear();
  for (size_t g = 0; g < snapshot.workers.size(); ++g) level_.push_back(static_cast<WorkerIndex>(g));
  std::stable_sort(level_.begin(), level_.end(),
                   [&](WorkerIndex a, WorkerIndex b) { return load(a) < load(b); });
  const int64_t median = load(level_[level_.size() / 2]);
  level_.erase(level_.begin(), std::find_if(level_.begin(), level_.end(),
                                            [&](WorkerIndex g) { return 2 * load(g) >= median; }));
}

void Valuation::Prepare(const Snapshot& snapshot, const PoolScale& scale, Instance& instance) {
  int64_t load = 0, active = 0;
  for (WorkerIndex g : level_) {
    load += snapshot.workers[g].load_tokens;
    active += snapshot.workers[g].active;
  }
  if (active == 0) return;
  const int64_t slot_load = load / active;
  const size_t most =
      level_.size() < kLeastPreparingGroup ? 0 : (level_.size() - 1) / kWorkersPerPreparing + 1;
  giants_.clear();
  for (size_t i = 0; i < snapshot.waiting.size() && giants_.size() < most; ++i) {
    const WaitingView& request = snapshot.waiting[i];
    // A lower class gets no slot now, however well prepared.
    if (request.priority < snapshot.waiting[0].priority) break;
    if (static_cast<double>(Age(request)) <= kOverdueAges * scale.age) continue;
    if (static_cast<double>(request.prefill_tokens) > kGiant * static_cast<double>(slot_load)) {
      giants_.push_back(static_cast<int32_t>(i));
    }
  }
  // The largest to the least loaded: the worker that has sunk deepest goes on sinking for the same request.
  std::stable_sort(giants_.begin(), giants_.end(), [&](int32_t a, int32_t b) {
    return snapshot.waiting[a].prefill_tokens > snapshot.waiting[b].prefill_tokens;
  });
  for (size_t i = 0; i < giants_.size(); ++i) {
    SolverItem& giant = instance.items[giants_[i]];
    giant.home = level_[i];
    giant.credit = giant.load - slot_load;
    instance.workers[giant.home].load += giant.credit;
  }
}

void Valuation::SetTarget(const PoolScale& scale, Instance& instance) const {
  int64_t load = 0, slots = 0;
  for (WorkerIndex g : level_) {
    load += instance.workers[g].load;
    slots += instance.workers[g].slots;
  }
  const double admitted =
      static_cast<double>(std::min<int64_t>(slots, static_cast<int64_t>(instance.items.size())));
  instance.target_load =
      (static_cast<double>(load) + admitted * (scale.mean_load - kStockTilt * scale.deviation)) /
      static_cast<double>(level_.size());
}

}  // namespace bfio::core
