// The part of RequestLifecycle about prompts that one rank computes for another.
#include "router/requests/hand_off.h"

#include <algorithm>
#include <vector>

#include "router/requests/request_lifecycle.h"
#include "router/requests/retry.h"

namespace bfio::router {

bool RequestLifecycle::MayHandOver(const RequestRecord& record) const {
  if (groups_.computes_none) return !record.request.passed.kv_from_elsewhere && !record.forgotten;
  return groups_.hands_over && cluster_->TakesPrefills() && record.delivered == 0 &&
         record.hand_off == nullptr && record.request.max_new_tokens > 1 &&
         record.hand_offs < kMostHandOffs && !record.held_to && !record.request.passed.kv_from_elsewhere &&
         !record.request.passed.no_hand_off && !record.forgotten;
}

void RequestLifecycle::ChooseHandOver(RequestRecord& record) {
  const bool may = MayHandOver(record);
  record.hands_over = false;
  record.hands_over = may && (groups_.computes_none || options_.hands_over_all ||
                              !cluster_->DecodesSooner(record.Spec(cluster_->NextStep())));
  if (record.hands_over && groups_.in_parallel) {
    record.prompt = next_alias_++;
    aliases_.emplace(record.prompt, record.id);
  }
  totals_.not_handed_over += may && !record.hands_over ? 1 : 0;
}

void RequestLifecycle::TakeHandOff(RequestRecord& record, HandOffPtr hand_off) {
  ++totals_.handed_over;
  ++record.hand_offs;
  record.hands_over = false;
  // They name the prompt's blocks of KV, so they are no larger than the prompt.
  if (const size_t bytes = hand_off->parameters.size();
      hand_off->meeting != nullptr ||
      (bytes > 0 && bytes <= kHandOffBytes + kHandOffBytesPerToken * record.request.prompt_tokens)) {
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
  // Nobody else computes it.
  if (groups_.computes_none && record.hand_offs >= kMostHandOffs) {
    return Fail(record,
                WithRetry(absl::UnavailableError("its prompt could not be handed over, several times"),
                          kFailedRetry));
  }
  if (!record.placed) queue_.Add(record, record.accepted);
  Cancel(record.core_id);
  Requeue(record);
}

RequestRecord* RequestLifecycle::InCore(core::RequestId id) const {
  const auto alias = aliases_.find(id);
  RequestRecord* const record = table_.FindLive(alias == aliases_.end() ? id : alias->second);
  return record != nullptr && record->core_id == id ? record : nullptr;
}

RequestRecord* RequestLifecycle::OfPrompt(core::RequestId id) const {
  const auto alias = aliases_.find(id);
  RequestRecord* const record = alias == aliases_.end() ? nullptr : table_.FindLive(alias->second);
  return record != nullptr && record->prompt == id ? record : nullptr;
}

bool RequestLifecycle::BeginPrompt(RequestRecord& record, Assignment& assignment) {
  const core::RequestId id = record.id;
  auto hand_off = std::make_shared<RequestHandOff>();
  hand_off->meeting = std::make_shared<std::string>();
  assignment.id = record.prompt;
  assignment.hand_off = hand_off;
  TakeHandOff(record, std::move(hand_off));
  prompts_placed_ = true;
  return table_.FindLive(id) != nullptr;
}

void RequestLifecycle::DropPrompt(RequestRecord& record) {
  const core::RequestId prompt = std::exchange(record.prompt, 0);
  if (aliases_.erase(prompt) > 0) Cancel(prompt);
}

bool RequestLifecycle::WithdrawFrom(RequestRecord& record) {
  DropPrompt(record);
  const PassedPtr& message = record.request.passed.message;
  const bool forwarded = message != nullptr && !message->brings_tokens();
  if (LocationOf(record) && (forwarded || record.delivered > record.placed_at)) return false;
  queue_.Remove(record);
  Cancel(record.core_id);
  if (!cluster_->Knows(record.core_id)) return true;
  // Its rank is told with its next plan. Until then it may report on it, and that is not on the next
  // placement.
  aliases_.erase(record.core_id);
  record.core_id = next_alias_++;
  aliases_.emplace(record.core_id, record.id);
  return true;
}

void RequestLifecycle::ChooseHandOversAnew() {
  std::vector<core::RequestId> ids = table_.Ids();
  // Each goes to the front.
  std::reverse(ids.begin(), ids.end());
  for (const core::RequestId id : ids) {
    RequestRecord* const record = table_.FindLive(id);
    const bool waits = record != nullptr && record->hand_off == nullptr && !LocationOf(*record) &&
                       !cluster_->LocationOf(record->prompt);
    if (waits && record->hands_over != (groups_.computes_none || groups_.hands_over)) WaitAnew(*record);
  }
}

}  // namespace bfio::router
