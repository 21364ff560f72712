// The part of RequestLifecycle about prompts that one rank computes for another.
#include "router/requests/hand_off.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "router/requests/request_lifecycle.h"

namespace bfio::router {

bool RequestLifecycle::MayHandOver(const RequestRecord& record) const {
  return groups_.hands_over && cluster_->TakesPrefills() && record.delivered == 0 &&
         record.hand_off == nullptr && record.request.max_new_tokens > 1 &&
         record.hand_offs < kMostHandOffs && !record.held_to && !record.request.passed.kv_from_elsewhere &&
         !record.request.passed.no_hand_off && !record.forgotten;
}

void RequestLifecycle::ChooseHandOver(RequestRecord& record) {
  const bool may = MayHandOver(record);
  record.hands_over = false;
  record.hands_over =
      may && (options_.hands_over_all || !cluster_->DecodesSooner(record.Spec(cluster_->NextStep())));
  totals_.not_handed_over += may && !record.hands_over ? 1 : 0;
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
    queue_.Add(record, now_);
  }
  EnterAgain(record);
}

absl::Status RequestLifecycle::CheckHandOff(const RequestRecord& record) const {
  const RequestHandOff* const from = record.request.hand_off.get();
  const bool trusted = from != nullptr && from->trusted;
  if (groups_.hands_over && !trusted && (from != nullptr || record.request.passed.kv_from_elsewhere)) {
    return absl::InvalidArgumentError(
        "kv_transfer_params of a client: this router hands prompts over between its engines itself");
  }
  if (from == nullptr) return absl::OkStatus();
  // Engines name their ranks ID_dpRANK.
  const auto& known = groups_.prefill_engines;
  if (groups_.hands_over && !known.contains(from->engine) &&
      !known.contains(from->engine.substr(0, from->engine.rfind("_dp")))) {
    return absl::InvalidArgumentError(
        "kv_transfer_params: remote_engine_id is that of no prefill server of this router");
  }
  if (used_hand_offs_.Contains(*from))
    return absl::InvalidArgumentError("kv_transfer_params: this KV was used by an earlier request");
  return absl::OkStatus();
}

std::pair<int64_t, absl::Duration> RequestLifecycle::HandOffsWaiting() const {
  std::pair<int64_t, absl::Duration> result;
  for (const auto& [deadline, id] : queue_.waiting()) {
    if (table_.Find(id)->hand_off == nullptr) continue;
    if (++result.first == 1) result.second = now_ - (deadline - kHandOffAge);
  }
  return result;
}

void RequestLifecycle::WaitAnew(RequestRecord& record) {
  record.hand_off = nullptr;
  queue_.Remove(record);
  if (!record.placed) queue_.Add(record, record.accepted);
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
