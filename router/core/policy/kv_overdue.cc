#include "router/core/policy/kv_overdue.h"

#include <algorithm>
#include <cstdint>
#include <limits>

namespace bfio::core {
namespace {

// Free KV that some worker with a free slot may have left for a request when its other slots have been filled
// by others, at worst.
int64_t LeastKvLeft(const Room& room, int64_t largest, int64_t all) {
  int64_t least = std::numeric_limits<int64_t>::max();
  for (WorkerIndex g = 0; g < room.workers(); ++g) {
    if (room[g].free_slots == 0) continue;
    const int64_t others = std::min(all, (room[g].free_slots - 1) * largest);
    least = std::min(least, room[g].free_kv_tokens - others);
  }
  return least;
}

}  // namespace

void PlaceKvOverdue(const Snapshot& snapshot, Room& room, std::vector<Assignment>& plan,
                    std::vector<char>& placed) {
  int64_t largest = 0, all = 0;
  for (const WaitingView& request : snapshot.waiting) {
    largest = std::max(largest, request.kv_reserve_tokens);
    all += request.kv_reserve_tokens;
  }
  if (LeastKvLeft(room, 0, 0) >= all) return;
  const int32_t waiting = static_cast<int32_t>(snapshot.waiting.size());
  for (int32_t i = 0; i < waiting && room.slots_left() > 0; ++i) {
    const WaitingView& request = snapshot.waiting[i];
    if (snapshot.step - request.enqueued_step < snapshot.hold_after_steps) continue;
    if (LeastKvLeft(room, largest, all - request.kv_reserve_tokens) >= request.kv_reserve_tokens) continue;
    const WorkerIndex worker =
        LeastKey(room, request, [](const WorkerView& view) { return view.load_tokens; });
    if (worker == kNoWorker) continue;
    room.Take(request, worker);
    plan.push_back({i, worker});
    placed[i] = 1;
    all -= request.kv_reserve_tokens;
  }
}

}  // namespace bfio::core
