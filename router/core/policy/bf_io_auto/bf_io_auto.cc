#include "router/core/policy/bf_io_auto/bf_io_auto.h"

#include <algorithm>

#include "router/core/policy/snapshot_instance.h"

namespace bfio::core {

void BfIoAutoPolicy::Decide(const Snapshot& snapshot, std::vector<Assignment>& plan) {
  stopped_early_ = false;
  probe_.Forget();
  room_.Reset(snapshot);
  preparation_.Observe(snapshot);
  headroom_.Observe(snapshot);
  const PoolScale scale = MeasurePool(snapshot.waiting);
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
  const std::vector<WorkerIndex>& level = level_workers_.Find(snapshot.workers);
  preparation_.Apply(snapshot, turns_.turns(), scale, turns_.seats(), level, instance_);
  SetTarget(level, scale.mean);
  turns_.SetWorths(snapshot, scale, instance_);
  const Solution& solution = probe_.Solve(solver_, instance_, stop_);
  stopped_early_ = solver_.statistics().CutShort();
  for (int32_t i = 0; i < static_cast<int32_t>(solution.worker_of.size()); ++i) {
    if (solution.worker_of[i] != kUnassigned) plan.push_back({i, solution.worker_of[i]});
  }
}

void BfIoAutoPolicy::SetTarget(const std::vector<WorkerIndex>& level, double mean_item) {
  if (level.empty()) return;
  double time = 0, slots = 0, rate = 0;
  for (const WorkerIndex g : level) {
    const SolverWorker& worker = instance_.workers[g];
    time += worker.Time(static_cast<double>(worker.load));
    slots += worker.slots;
    rate += worker.load_rate();
  }
  const double workers = static_cast<double>(level.size());
  const double admitted = std::min(slots, static_cast<double>(instance_.items.size()));
  instance_.target_load = (time + admitted * mean_item * rate / workers) / workers;
}

}  // namespace bfio::core
