#include "router/core/policy/bf_io_auto/bf_io_auto.h"

#include <algorithm>

#include "router/core/policy/snapshot_instance.h"

namespace bfio::core {

void BfIoAutoPolicy::Decide(const Snapshot& snapshot, Decision& decision) {
  free_.Reset(snapshot);
  preparation_.Observe(snapshot);
  headroom_.Observe(snapshot);
  const PoolScale scale = MeasurePool(snapshot.waiting);
  const int64_t waiting = static_cast<int64_t>(snapshot.waiting.size());
  const int64_t seats = std::min(free_.free_slots(), waiting);
  turns_.Observe(snapshot, scale, seats);
  if (seats > 0) {
    if (free_.free_slots() < waiting || !headroom_.Place(snapshot, free_, decision.assignments)) {
      decision.assignments.clear();
      free_.Reset(snapshot);
      Solve(snapshot, scale, decision);
    }
  }
  turns_.Learn(snapshot, decision.assignments);
  preparation_.Remember(snapshot, decision.assignments);
}

void BfIoAutoPolicy::Solve(const Snapshot& snapshot, const PoolScale& scale, Decision& decision) {
  FillInstance(snapshot, free_, /*horizon=*/0, instance_);
  const std::vector<WorkerIndex>& level = level_workers_.Find(snapshot.workers);
  preparation_.Apply(snapshot, turns_.turns(), scale, turns_.seats(), level, instance_);
  if (!level.empty()) instance_.target_load = LevelTarget(instance_, level, scale.mean);
  turns_.SetWorths(snapshot, scale, instance_);
  const Solution& solution = probe_.Solve(solver_, instance_, stop_);
  decision.gap = probe_.gap();
  decision.stopped_early = solver_.statistics().CutShort();
  for (int32_t i = 0; i < static_cast<int32_t>(solution.worker_of.size()); ++i) {
    if (solution.worker_of[i] != kUnassigned) decision.assignments.push_back({i, solution.worker_of[i]});
  }
}

}  // namespace bfio::core
