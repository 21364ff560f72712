#include "router/core/policy/bf_io/bf_io.h"

namespace bfio::core {

void BfIoPolicy::Decide(const Snapshot& snapshot, std::vector<Assignment>& plan) {
  room_.Reset(snapshot);
  if (room_.slots_left() == 0 || snapshot.waiting.empty()) return;
  BuildInstance(snapshot);
  if (square_) valuation_.Apply(snapshot, instance_);
  const Solution& solution = solver_.Solve(instance_);
  for (int32_t i = 0; i < static_cast<int32_t>(solution.worker_of.size()); ++i) {
    if (solution.worker_of[i] != kUnassigned) plan.push_back({i, solution.worker_of[i]});
  }
}

void BfIoPolicy::BuildInstance(const Snapshot& snapshot) {
  instance_.workers.clear();
  for (WorkerIndex g = 0; g < room_.workers(); ++g) {
    instance_.workers.push_back({room_[g].load_tokens, room_[g].free_slots, room_[g].free_kv_tokens});
  }
  instance_.items.clear();
  for (const WaitingView& request : snapshot.waiting) {
    instance_.items.push_back({request.prefill_tokens, request.kv_reserve_tokens, request.priority});
  }
}

}  // namespace bfio::core
