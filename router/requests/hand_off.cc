// The part of RequestLifecycle about prompts that one rank computes for another.
#include "router/requests/hand_off.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "router/requests/request_lifecycle.h"

namespace bfio::router {

bool RequestLifecycle::MayHandOver(const RequestRecord& record) const {
  return groups_.hands_over && cluster_->TakesPrefills() && record.delivered == 0 &&
         record.request.max_new_tokens > 1 && record.hand_offs < kMostHandOffs && !record.held_to &&
         !record.request.passed.kv_from_elsewhere && !record.request.passed.no_hand_off && !record.forgotten;
}

void RequestLifecycle::TakeHandOff(RequestRecord& record, HandOffPtr hand_off) {
  ++totals_.handed_over;
  ++record.hand_offs;
  record.hands_over = false;
  // They name the prompt's blocks of KV, so they are no larger than the prompt.
  if (const size_t bytes = hand_off->parameters.size();
      bytes > 0 && bytes <= kHandOffBytes + kHandOffBytesPerToken * record.request.prompt_tokens) {
    // Another model cannot use it.
    record.model = record.placed_model;
    record.hand_off = std::move(hand_off);
    queue_.AddUntil(record, now_ + kHandOffAge);
  }
  EnterAgain(record);
}

void RequestLifecycle::WaitAnew(RequestRecord& record) {
  // One that was never placed keeps its deadline.
  if (record.placed) queue_.Remove(record);
  Cancel(record.id);
  Requeue(record);
}

void RequestLifecycle::StopHandingOver() {
  std::vector<core::RequestId> ids = table_.Ids();
  // Each goes to the front.
  std::reverse(ids.begin(), ids.end());
  for (const core::RequestId id : ids) {
    RequestRecord* const record = table_.FindLive(id);
    if (record != nullptr && record->hands_over && !cluster_->LocationOf(id)) WaitAnew(*record);
  }
}

}  // namespace bfio::router
