// The decision loop's door: what has been accepted, and whether there is room for one more.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "router/core/agents/senior_step.h"
#include "router/service/convert.h"
#include "router/service/decision_loop.h"

namespace bfio::router {
namespace {

// Present and predicted KV: its prompt, and what it is going to make as far as its client knows.
int64_t KvOf(const v1::GenerateRequest& request) {
  const uint32_t predicted =
      request.has_predicted_output_tokens() ? request.predicted_output_tokens() : request.max_new_tokens();
  return int64_t{PromptTokens(request)} + std::min(predicted, request.max_new_tokens());
}

}  // namespace

absl::Status DecisionLoop::CheckFits(const RequestRecord& record) const {
  const int64_t tokens = int64_t{PromptTokens(record.request)} + record.request.max_new_tokens();
  if (!max_sequence_ || tokens <= *max_sequence_) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("prompt + max_new_tokens is ", tokens,
                                                 " tokens; the workers hold at most ", *max_sequence_,
                                                 " per request"));
}

absl::Status DecisionLoop::CheckRoom(const RequestRecord& record) const {
  if (waiting_bytes_ + record.prompt_bytes() + record.history_bytes() > options_.max_waiting_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the prompts of waiting requests take ", waiting_bytes_, " bytes already"));
  }
  // The group's own KV, and so much again as may wait for it. The first one is taken whatever its size.
  const double room = (1 + options_.max_waiting_kv) * static_cast<double>(group_kv_);
  const int64_t wanted = committed_kv_ + KvOf(record.request);
  if (options_.max_waiting_kv > 0 && group_kv_ > 0 && committed_kv_ > 0 &&
      static_cast<double>(wanted) > room) {
    return absl::ResourceExhaustedError(absl::StrCat("accepted requests may come to need ", committed_kv_,
                                                     " KV tokens already; the workers have ", group_kv_));
  }
  return absl::OkStatus();
}

void DecisionLoop::Commit(RequestRecord& record) {
  record.committed_kv = KvOf(record.request);
  committed_kv_ += record.committed_kv;
  record.waiting_bytes = record.first_token ? 0 : record.prompt_bytes() + record.history_bytes();
  waiting_bytes_ += record.waiting_bytes;
}

void DecisionLoop::Uncommit(RequestRecord& record) {
  committed_kv_ -= std::exchange(record.committed_kv, 0);
  waiting_bytes_ -= std::exchange(record.waiting_bytes, 0);
  record.ticket.set_used(int64_t{PromptTokens(record.request)} + record.delivered);
  record.ticket.Release();
  LeaveParent(record);
}

void DecisionLoop::JoinParent(RequestRecord& record) {
  const v1::GenerateRequest& request = record.request;
  if (request.parent_id().empty()) return;
  totals_.set_agent_calls(totals_.agent_calls() + 1);
  // Tenants cannot meet in one name: the length tells where the first ends.
  std::string name = absl::StrCat(request.tenant().size(), ":", request.tenant(), request.parent_id());
  const int64_t now = scheduler_.NextStep();
  const std::optional<core::Parents::Standing> parent = parents_.Begin(
      name, now, request.has_stage() ? std::optional<uint32_t>(request.stage()) : std::nullopt);
  if (!parent.has_value()) return;
  record.parent = std::move(name);
  if (options_.agent_order == AgentOrder::kAge) record.seniority = now - parent->first_step;
  if (options_.agent_order == AgentOrder::kDue) {
    record.seniority =
        now - core::SeniorStep(parent->first_step, parent->tokens_made, request.remaining_tokens());
  }
}

void DecisionLoop::LeaveParent(RequestRecord& record) {
  if (record.parent.empty()) return;
  parents_.End(record.parent, record.delivered);
  record.parent.clear();
}

}  // namespace bfio::router
