#include "worker/scheduler/batch_builder.h"

#include <algorithm>

namespace bfio::worker {

bool BatchBuilder::AnyDecoding() const {
  return std::any_of(requests_.begin(), requests_.end(),
                     [](const BatchRequest& request) { return request.decoding(); });
}

void BatchBuilder::AddDecodes() {
  for (size_t i = 0; i < requests_.size() && capacity_.token_budget > 0; ++i) {
    if (requests_[At(i)].decoding()) Add(At(i), 1);
  }
}

void BatchBuilder::AddPrefillChunks() {
  bool held_back = false;
  for (size_t i = 0; i < requests_.size() && PrefillCapacity() > 0; ++i) {
    const BatchRequest& request = requests_[At(i)];
    if (request.prefill_left == 0) continue;
    held_back = held_back || !HasCapacityFor(request);
    if (held_back && !request.resident) continue;
    Add(At(i), std::min(request.prefill_left, PrefillCapacity()));
  }
}

bool BatchBuilder::AddWholePrompts() {
  bool waits = false, held_back = false;
  for (size_t i = 0; i < requests_.size() && PrefillCapacity() > 0; ++i) {
    const BatchRequest& request = requests_[At(i)];
    if (request.prefill_left == 0) continue;
    held_back = held_back || !HasCapacityFor(request);
    if (held_back && !request.resident) continue;
    waits = true;
    if (request.prefill_left > PrefillCapacity()) break;
    Add(At(i), request.prefill_left);
  }
  return waits;
}

bool BatchBuilder::HasCapacityFor(const BatchRequest& request) const {
  return request.resident || (capacity_.free_slots > 0 && request.kv_tokens <= capacity_.free_kv_tokens);
}

void BatchBuilder::Add(int32_t which, int64_t rows) {
  const BatchRequest& request = requests_[which];
  batch_.push_back({which, static_cast<int32_t>(rows)});
  capacity_.token_budget -= rows;
  if (request.prefill_left > 0 && capacity_.prefill_tokens != BatchCapacity::kUnbounded)
    capacity_.prefill_tokens -= rows;
  if (request.resident) return;
  if (capacity_.free_slots != BatchCapacity::kUnbounded) --capacity_.free_slots;
  if (capacity_.free_kv_tokens != BatchCapacity::kUnbounded) capacity_.free_kv_tokens -= request.kv_tokens;
}

}  // namespace bfio::worker
