// What a policy sees and what it answers.
//
// Purpose: the one interface between scheduling state and decision. A Snapshot is an immutable view of the
// group as it will stand when the plan is applied: loads are projected to that step, assignments in flight
// are already inside. Ownership: a Snapshot borrows; it is valid during one Policy::Decide call only.
#ifndef BFIO_ROUTER_CORE_MODEL_SNAPSHOT_H_
#define BFIO_ROUTER_CORE_MODEL_SNAPSHOT_H_

#include <cstdint>
#include <optional>

#include "absl/types/span.h"
#include "router/core/model/request.h"

namespace bfio::core {

struct WorkerView {
  // L_g at the plan's step, before any new assignment, in tokens: resident requests and those in flight.
  int64_t load_tokens = 0;
  // Requests resident or in flight.
  int32_t active = 0;
  // cap[g]: requests this worker can still take; 0 when it drains.
  int32_t free_slots = 0;
  // KV tokens not reserved by anybody.
  int64_t free_kv_tokens = 0;
};

struct WaitingView {
  RequestId id = 0;
  // s, the load the request adds in its first step, in tokens.
  int64_t prefill_tokens = 0;
  // KV tokens that must be free on a worker for it to take the request.
  int64_t kv_reserve_tokens = 0;
  // Step at which the request entered the pool; Snapshot::step minus this is its waiting age in steps.
  int64_t enqueued_step = 0;
  int32_t priority = 0;
  std::optional<int64_t> predicted_output_tokens;
};

struct Snapshot {
  // The step the plan will be applied at.
  int64_t step = 0;
  // By rank.
  absl::Span<const WorkerView> workers;
  // The waiting pool: higher priority first, then oldest first.
  absl::Span<const WaitingView> waiting;
};

// Request snapshot.waiting[waiting_index] goes to worker `worker`.
struct Assignment {
  int32_t waiting_index = 0;
  WorkerIndex worker = 0;
};

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_MODEL_SNAPSHOT_H_
