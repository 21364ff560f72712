#include "router/core/policy/bf_io_auto/bf_io_auto.h"

#include <algorithm>
#include <cmath>

#include "router/core/policy/snapshot_instance.h"

namespace bfio::core {

void BfIoAutoPolicy::Decide(const Snapshot& snapshot, std::vector<Assignment>& plan) {
  room_.Reset(snapshot);
  preparation_.Observe(snapshot);
  headroom_.Observe(snapshot);
  const PoolScale scale = Measure(snapshot);
  const int64_t waiting = static_cast<int64_t>(snapshot.waiting.size());
  const int64_t seats = std::min(room_.slots_left(), waiting);
  turns_.Observe(snapshot, scale, seats);
  if (seats > 0) {
    if (room_.slots_left() < waiting || !headroom_.Place(snapshot, room_, plan)) {
      plan.clear();
      room_.Reset(snapshot);
      Solve(snapshot, scale, plan);
    }
  }
  turns_.Learn(snapshot, plan);
  preparation_.Remember(snapshot, plan);
}

void BfIoAutoPolicy::Solve(const Snapshot& snapshot, const PoolScale& scale, std::vector<Assignment>& plan) {
  FillInstance(snapshot, room_, /*horizon=*/0, instance_);
  FindLevelWorkers();
  preparation_.Apply(snapshot, turns_.turns(), scale, turns_.seats(), level_, instance_);
  SetTarget(scale.mean);
  turns_.SetWorths(snapshot, scale, instance_);
  const Solution& solution = solver_.Solve(instance_);
  for (int32_t i = 0; i < static_cast<int32_t>(solution.worker_of.size()); ++i) {
    if (solution.worker_of[i] != kUnassigned) plan.push_back({i, solution.worker_of[i]});
  }
}

PoolScale BfIoAutoPolicy::Measure(const Snapshot& snapshot) {
  PoolScale scale;
  const double count = std::max(1.0, static_cast<double>(snapshot.waiting.size()));
  for (const WaitingView& request : snapshot.waiting) {
    scale.mean += static_cast<double>(request.prefill_tokens) / count;
  }
  for (const WaitingView& request : snapshot.waiting) {
    scale.deviation += std::abs(static_cast<double>(request.prefill_tokens) - scale.mean) / count;
  }
  return scale;
}

void BfIoAutoPolicy::FindLevelWorkers() {
  loads_.clear();
  level_.clear();
  for (WorkerIndex g = 0; g < room_.workers(); ++g) {
    if (room_[g].accepts_new) loads_.push_back(instance_.workers[g].load);
  }
  if (loads_.empty()) return;
  std::nth_element(loads_.begin(), loads_.begin() + static_cast<int64_t>(loads_.size() / 2), loads_.end());
  const int64_t median = loads_[loads_.size() / 2];
  for (WorkerIndex g = 0; g < room_.workers(); ++g) {
    if (room_[g].accepts_new && 2 * instance_.workers[g].load >= median) level_.push_back(g);
  }
}

void BfIoAutoPolicy::SetTarget(double mean_item) {
  double time = 0, slots = 0, rate = 0;
  for (const WorkerIndex g : level_) {
    const SolverWorker& worker = instance_.workers[g];
    time += worker.Time(static_cast<double>(worker.load));
    slots += worker.slots;
    rate += worker.time_per_token;
  }
  if (level_.empty()) return;
  const double workers = static_cast<double>(level_.size());
  const double admitted = std::min(slots, static_cast<double>(instance_.items.size()));
  instance_.target_load = (time + admitted * mean_item * rate / workers) / workers;
}

}  // namespace bfio::core
