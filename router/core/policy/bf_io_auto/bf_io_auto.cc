#include "router/core/policy/bf_io_auto/bf_io_auto.h"

#include <algorithm>

#include "router/core/policy/snapshot_instance.h"

namespace bfio::core {

void BfIoAutoPolicy::Decide(const Snapshot& snapshot, Decision& decision) {
  free_.Reset(snapshot);
  oversized_.Observe(snapshot);
  headroom_.Observe(snapshot);
  const PoolScale scale = MeasurePool(snapshot.waiting);
  const int64_t waiting = static_cast<int64_t>(snapshot.waiting.size());
  const int64_t admissions = std::min(free_.free_slots(), waiting);
  urgency_.Observe(snapshot);
  if (admissions > 0) {
    if (free_.free_slots() < waiting || !PlaceAll(snapshot, decision)) {
      decision.assignments.clear();
      free_.Reset(snapshot);
      Solve(snapshot, scale, decision);
    }
  }
  urgency_.Learn(snapshot, decision.assignments);
  oversized_.Remember(snapshot, decision.assignments);
}

bool BfIoAutoPolicy::PlaceAll(const Snapshot& snapshot, Decision& decision) {
  switch (snapshot.rule) {
    case PlacementRule::kCounts:
      counts_.Decide(snapshot, decision);
      return decision.assignments.size() == snapshot.waiting.size();
    case PlacementRule::kRefill:
    case PlacementRule::kHorizon:
      if (!snapshot.far.steps.empty()) return horizon_.Place(snapshot, stop_, free_, decision);
      [[fallthrough]];
    case PlacementRule::kHeadroom: {
      const double growth = headroom_.ExpectedGrowth(snapshot, oversized_.completed_tokens());
      return headroom_.Place(snapshot, growth, stop_, free_, decision);
    }
  }
  return false;
}

void BfIoAutoPolicy::Solve(const Snapshot& snapshot, const PoolScale& scale, Decision& decision) {
  FillInstance(snapshot, free_, /*horizon=*/0, instance_);
  const std::vector<WorkerIndex>& level = level_workers_.Find(snapshot.workers);
  oversized_.Apply(snapshot, urgency_.slacks(), scale, urgency_.admissions(), level, instance_);
  if (!level.empty()) instance_.target_load = LevelTarget(instance_, level, scale.mean);
  urgency_.SetWeights(snapshot, scale, instance_);
  const Solution& solution = solver_.Solve(instance_, stop_);
  // PlaceAll may have set it before.
  decision.stopped_early = decision.stopped_early || solver_.statistics().CutShort();
  for (int32_t i = 0; i < static_cast<int32_t>(solution.worker_of.size()); ++i) {
    if (solution.worker_of[i] != kUnassigned) decision.assignments.push_back({i, solution.worker_of[i]});
  }
}

}  // namespace bfio::core
