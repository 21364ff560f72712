#include "router/requests/agent_calls.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "router/core/agents/parents.h"

namespace bfio::router {
namespace {

// Lower bound of the tokens that the call generates.
int64_t LeastTokens(const ClientRequest& request) {
  return request.ignore_eos && request.stop_token_ids.empty() ? request.max_new_tokens : 1;
}

absl::Status CheckDeadline(const RequestRecord& record, std::optional<absl::Duration> shortest_step,
                           absl::Time now) {
  if (record.deadline_us == core::RequestSpec::kNoDeadline) return absl::OkStatus();
  const int64_t left_us = record.deadline_us - absl::ToUnixMicros(now);
  if (left_us <= 0) return AgentCalls::DeadlinePassed();
  const int64_t tokens =
      LeastTokens(record.request) - record.delivered + int64_t{record.request.remaining_tokens.value_or(0)};
  const double least_us =
      shortest_step ? absl::ToDoubleMicroseconds(*shortest_step) * static_cast<double>(tokens) : 0;
  if (least_us <= static_cast<double>(left_us)) return absl::OkStatus();
  return absl::DeadlineExceededError(
      absl::StrCat("the parent needs ", tokens, " more tokens, which take at least ", least_us * 1e-6,
                   " s, but its deadline is in ", static_cast<double>(left_us) * 1e-6, " s"));
}

}  // namespace

absl::Status AgentCalls::DeadlinePassed() {
  return absl::DeadlineExceededError("the parent's deadline has passed");
}

absl::Status AgentCalls::Check(RequestRecord& record, int64_t step,
                               std::optional<absl::Duration> shortest_step, absl::Time now) const {
  const ClientRequest& request = record.request;
  if (request.parent_id.empty()) return absl::OkStatus();
  // The length prefix keeps names of different tenants apart.
  std::string name = absl::StrCat(request.tenant.size(), ":", request.tenant, request.parent_id);
  const std::optional<core::Parents::State> parent = parents_.Find(name, step, request.stage);
  if (!parent.has_value()) return absl::OkStatus();
  record.parent = std::move(name);
  const int64_t senior = core::SeniorStep(parent->first_step, parent->generated_tokens,
                                          int64_t{request.remaining_tokens.value_or(0)});
  record.senior_step = step - core::Seniority(step, senior);
  record.deadline_us = parent->deadline_us;
  if (request.parent_timeout) {
    record.deadline_us = std::min(
        record.deadline_us, absl::ToUnixMicros(now) + absl::ToInt64Microseconds(*request.parent_timeout));
  }
  return CheckDeadline(record, shortest_step, now);
}

void AgentCalls::Join(const RequestRecord& record, int64_t step) {
  if (record.parent.empty()) return;
  parents_.Begin(record.parent, record.id, step, record.request.stage, record.deadline_us);
  if (record.deadline_us == core::RequestSpec::kNoDeadline) return;
  if (!deadlines_.emplace(record.deadline_us, record.parent).second) return;
  // Drops the deadlines that no longer belong to a parent; then each parent in the table has at most one.
  if (deadlines_.size() <= 2 * core::Parents::kDefaultLimit) return;
  std::erase_if(deadlines_,
                [&](const auto& entry) { return parents_.Deadline(entry.second) != entry.first; });
}

void AgentCalls::Leave(RequestRecord& record, int64_t step) {
  if (record.parent.empty()) return;
  parents_.End(record.parent, record.id, record.delivered, step);
  record.parent.clear();
}

std::vector<core::RequestId> AgentCalls::Expire(absl::Time now) {
  std::vector<core::RequestId> expired;
  while (!deadlines_.empty() && deadlines_.begin()->first <= absl::ToUnixMicros(now)) {
    const auto [deadline_us, name] = *deadlines_.begin();
    deadlines_.erase(deadlines_.begin());
    if (parents_.Deadline(name) > deadline_us) continue;  // the parent was removed and has started again
    const absl::Span<const core::RequestId> calls = parents_.Calls(name);
    expired.insert(expired.end(), calls.begin(), calls.end());
  }
  return expired;
}

absl::Time AgentCalls::next_deadline() const {
  return deadlines_.empty() ? absl::InfiniteFuture() : absl::FromUnixMicros(deadlines_.begin()->first);
}

}  // namespace bfio::router
