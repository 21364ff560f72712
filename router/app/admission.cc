// The decision loop's door: what has been accepted, and whether there is room for one more.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "router/app/decision_loop.h"
#include "router/core/agents/senior_step.h"
#include "router/worker_link/convert.h"

namespace bfio::router {
namespace {

// Present and predicted KV: its prompt, and what it is going to make as far as its client knows.
int64_t KvOf(const v1::GenerateRequest& request) {
  const uint32_t predicted =
      request.has_predicted_output_tokens() ? request.predicted_output_tokens() : request.max_new_tokens();
  return int64_t{PromptTokens(request)} + std::min(predicted, request.max_new_tokens());
}

// Of each rank, before the shortest of them bounds what a step takes.
constexpr int64_t kStepsToJudge = 64;

constexpr char kParentsDeadline[] = "the parent's deadline has passed";

int64_t ToMicros(absl::Time time) {
  return absl::ToUnixMicros(time);
}

std::optional<uint32_t> StageOf(const v1::GenerateRequest& request) {
  return request.has_stage() ? std::optional<uint32_t>(request.stage()) : std::nullopt;
}

// Tokens that the call makes for certain.
int64_t LeastTokens(const v1::GenerateRequest& request) {
  return request.ignore_eos() && request.stop_token_ids().empty() ? request.max_new_tokens() : 1;
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

absl::Status DecisionLoop::LookAtParent(RequestRecord& record) {
  const v1::GenerateRequest& request = record.request;
  if (request.parent_id().empty()) return absl::OkStatus();
  // Tenants cannot meet in one name: the length tells where the first ends.
  std::string name = absl::StrCat(request.tenant().size(), ":", request.tenant(), request.parent_id());
  const int64_t now = scheduler_.NextStep();
  const std::optional<core::Parents::Standing> parent = parents_.Look(name, now, StageOf(request));
  if (!parent.has_value()) return absl::OkStatus();
  record.parent = std::move(name);
  if (options_.agent_order != AgentOrder::kOff) {
    const bool due = options_.agent_order == AgentOrder::kDue;
    const int64_t step = core::SeniorStep(parent->first_step, due ? parent->tokens_made : 0,
                                          due ? int64_t{request.remaining_tokens()} : 0);
    record.senior_step = now - core::Seniority(now, step);
  }
  record.deadline_us = parent->deadline_us;
  if (request.has_parent_timeout()) {
    record.deadline_us = std::min(
        record.deadline_us, ToMicros(now_) + absl::ToInt64Microseconds(DurationOf(request.parent_timeout())));
  }
  return CheckDeadline(record);
}

absl::Status DecisionLoop::CheckDeadline(const RequestRecord& record) const {
  if (record.deadline_us == core::RequestSpec::kNoDeadline) return absl::OkStatus();
  const int64_t left_us = record.deadline_us - ToMicros(now_);
  if (left_us <= 0) return absl::DeadlineExceededError(kParentsDeadline);
  // No step of this group has been shorter, and a step makes one token of a request.
  const int64_t tokens = LeastTokens(record.request) - record.delivered + record.request.remaining_tokens();
  // Few steps may all have been long ones.
  const bool known = shortest_step_.has_value() && steps_timed_ >= kStepsToJudge * scheduler_.num_workers();
  const double least_us =
      known ? absl::ToDoubleMicroseconds(*shortest_step_) * static_cast<double>(tokens) : 0;
  if (least_us <= static_cast<double>(left_us)) return absl::OkStatus();
  return absl::DeadlineExceededError(absl::StrCat("the parent needs ", tokens, " more tokens, ",
                                                  least_us * 1e-6, " s at the least, and its deadline is in ",
                                                  static_cast<double>(left_us) * 1e-6, " s"));
}

void DecisionLoop::JoinParent(const RequestRecord& record) {
  if (!record.request.parent_id().empty()) totals_.set_agent_calls(totals_.agent_calls() + 1);
  if (record.parent.empty()) return;
  parents_.Begin(record.parent, record.id, scheduler_.NextStep(), StageOf(record.request),
                 record.deadline_us);
  if (record.deadline_us == core::RequestSpec::kNoDeadline) return;
  if (!parent_deadlines_.emplace(record.deadline_us, record.parent).second) return;
  // What parents have given up, or been forgotten with, is dropped: the rest is one for each in the book.
  if (parent_deadlines_.size() <= 2 * core::Parents::kDefaultLimit) return;
  std::erase_if(parent_deadlines_,
                [&](const auto& entry) { return parents_.Deadline(entry.second) != entry.first; });
}

void DecisionLoop::LeaveParent(RequestRecord& record) {
  if (record.parent.empty()) return;
  parents_.End(record.parent, record.id, record.delivered, scheduler_.NextStep());
  record.parent.clear();
}

void DecisionLoop::ExpireParents(absl::Time now) {
  while (!parent_deadlines_.empty() && parent_deadlines_.begin()->first <= ToMicros(now)) {
    const auto [deadline_us, name] = *parent_deadlines_.begin();
    parent_deadlines_.erase(parent_deadlines_.begin());
    if (parents_.Deadline(name) > deadline_us) continue;  // forgotten, and begun anew since
    const absl::Span<const core::RequestId> calls = parents_.Calls(name);
    for (const core::RequestId id : std::vector<core::RequestId>(calls.begin(), calls.end())) {
      RequestRecord* record = requests_.Find(id);
      if (record == nullptr || record->ended) continue;
      scheduler_.Cancel(id);
      totals_.set_cancelled(totals_.cancelled() + 1);
      End(*record, grpc::Status(grpc::StatusCode::DEADLINE_EXCEEDED, kParentsDeadline), std::nullopt);
    }
  }
}

absl::Duration DecisionLoop::UntilParentDeadline(absl::Time now) const {
  if (parent_deadlines_.empty()) return absl::InfiniteDuration();
  return absl::Microseconds(parent_deadlines_.begin()->first - ToMicros(now));
}

}  // namespace bfio::router
