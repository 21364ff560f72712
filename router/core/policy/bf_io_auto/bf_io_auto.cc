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
  if (!level.empty()) instance_.target_load = LevelTarget(instance_, level, scale.mean);
  turns_.SetWorths(snapshot, scale, instance_);
  const Solution& solution = probe_.Solve(solver_, instance_, stop_);
  stopped_early_ = solver_.statistics().CutShort();
  for (int32_t i = 0; i < static_cast<int32_t>(solution.worker_of.size()); ++i) {
    if (solution.worker_of[i] != kUnassigned) plan.push_back({i, solution.worker_of[i]});
  }
}

}  // namespace bfio::core
