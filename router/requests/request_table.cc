#include "router/requests/request_table.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/telemetry/trace_context.h"
#include "router/requests/resume_rights.h"

namespace bfio::router {

core::RequestSpec RequestRecord::Spec(int64_t next_step) {
  core::RequestSpec spec;
  spec.id = hands_over && prompt != 0 ? prompt : core_id;
  spec.prefill_tokens = int64_t{request.prompt_tokens} + delivered;
  // Tokens generated so far come from the decoding engine, and its KV cache was lost with it.
  if (hand_off != nullptr || (request.passed.kv_from_elsewhere && delivered == 0))
    spec.computed_tokens = spec.prefill_tokens - 1;
  // A prompt that is computed for another rank ends with its first token.
  spec.max_new_tokens = hands_over ? 1 : int64_t{request.max_new_tokens} - delivered;
  if (request.predicted_output_tokens) {
    spec.predicted_output_tokens =
        std::max<int64_t>(1, int64_t{*request.predicted_output_tokens} - delivered);
  }
  spec.priority = request.priority;
  spec.tenant = tenant;
  spec.generated_tokens = int64_t{delivered} - claimed;
  // Another model would continue the client's tokens differently.
  spec.model = model;
  if (request.sampling.logprobs) spec.needs |= core::RequestSpec::kLogprobs;
  if (request.passed.on) spec.needs |= core::RequestSpec::kPassing;
  spec.needs |= hands_over ? core::RequestSpec::kHandsOver : core::RequestSpec::kDecodes;
  if (!hands_over) spec.held_to = held_to;
  spec.prefix = request.prefix;
  if (senior_step) spec.seniority = next_step - *senior_step;
  seniority = spec.seniority;
  if (placed) spec.waited_steps = wait_steps;
  spec.deadline_us = deadline_us;
  if (request.ttft_objective && !first_token) {
    spec.ttft_objective_s = absl::ToDoubleSeconds(*request.ttft_objective);
  }
  spec.refusals = refusals;
  spec.steps_alone = suspicion.steps_alone();
  return spec;
}

int64_t RequestRecord::Keep(absl::Span<const uint32_t> tokens, const LogprobsView& logprobs) {
  const bool history_too = keeps_history();
  if (forgotten || (!history_too && !request.passed.starts_again)) return 0;
  int64_t bytes = kept_bytes == 0 ? request.prompt_bytes() : 0;
  if (!history_too) return bytes;
  // The first time with the tokens that the client had.
  bytes += int64_t{4} * (kept_bytes == 0 ? delivered : static_cast<int64_t>(tokens.size()));
  history.insert(history.end(), tokens.begin(), tokens.end());
  if (keeps_logprobs()) {
    history_logprobs.Append(logprobs);
    bytes += int64_t{4} * logprobs.words();
  }
  return bytes;
}

std::string RequestRecord::LogName() const {
  std::string name = OutputName(request);
  if (!request.tenant.empty()) absl::StrAppend(&name, " of tenant ", request.tenant);
  const absl::string_view trace = TraceIdOf(traceparent);
  if (!trace.empty()) absl::StrAppend(&name, " (trace ", trace, ")");
  return name;
}

std::vector<LogField> RequestRecord::Fields() const {
  std::vector<LogField> fields = {
      {"request_id", OutputName(request)}, {"tenant", request.tenant}, {"trace_id", TraceIdOf(traceparent)}};
  if (last_rank) fields.emplace_back("rank", *last_rank);
  return fields;
}

bfio::router::Assignment RequestRecord::MakeAssignment(bool kv_on_demand) const {
  bfio::router::Assignment assignment;
  assignment.id = core_id;
  assignment.request = &request;
  assignment.history = &history;
  if (!history_logprobs.empty()) assignment.history_logprobs = &history_logprobs;
  assignment.first_index = delivered;
  // A request keeps its random stream wherever it is placed.
  assignment.seed = request.sampling.seed ? *request.sampling.seed : SeedOfName(OutputName(request));
  assignment.traceparent = &traceparent;
  assignment.waited_steps = wait_steps + seniority;
  assignment.refusals = refusals;
  assignment.hands_over = hands_over;
  assignment.hand_off = hand_off;
  assignment.kv_on_demand = kv_on_demand && !core::RequestSpec::ReservesAfter(refusals);
  return assignment;
}

Finish RequestRecord::MakeFinish(FinishReason reason, absl::Time now) const {
  Finish finish;
  finish.reason = reason;
  finish.prompt_tokens = request.prompt_tokens;
  finish.completion_tokens = delivered;
  finish.queue = placed.value_or(now) - accepted;
  if (first_token) finish.time_to_first_token = *first_token - accepted;
  finish.end_to_end = now - accepted;
  finish.wait_steps = std::max<int64_t>(0, wait_steps);
  finish.rank = last_rank;
  return finish;
}

RequestRecord* RequestTable::Add(core::RequestId id, ClientRequest request, std::shared_ptr<TokenSink> sink,
                                 uint32_t tenant, absl::Time now) {
  if (records_.contains(id)) return nullptr;
  const auto [name, is_new] = names_.try_emplace(std::pair(request.tenant, request.request_id));
  if (!is_new && request.output == 0) return nullptr;
  name->second.push_back(id);
  auto record = std::make_unique<RequestRecord>();
  record->id = record->core_id = id;
  record->request = std::move(request);
  // Engines get the seed too, so that a restarted request generates the same tokens.
  if (record->request.resumable && !record->request.sampling.seed)
    record->request.sampling.seed = SeedOfName(OutputName(record->request));
  record->send_from = record->request.resume_from.value_or(0);
  if (sink != nullptr) record->traceparent = sink->traceparent();
  SetSink(*record, std::move(sink));
  record->tenant = tenant;
  record->accepted = now;
  return records_.emplace(id, std::move(record)).first->second.get();
}

RequestRecord* RequestTable::Find(core::RequestId id) const {
  const auto it = records_.find(id);
  return it == records_.end() ? nullptr : it->second.get();
}

RequestRecord* RequestTable::FindLive(core::RequestId id) const {
  RequestRecord* const record = Find(id);
  return record == nullptr || record->ended ? nullptr : record;
}

RequestRecord* RequestTable::FindByName(const std::string& tenant, const std::string& request_id) {
  const auto it = names_.find(std::pair(tenant, request_id));
  return it == names_.end() ? nullptr : Find(it->second.front());
}

std::vector<core::RequestId> RequestTable::IdsOf(const std::string& tenant,
                                                 const std::string& request_id) const {
  const auto it = names_.find(std::pair(tenant, request_id));
  return it == names_.end() ? std::vector<core::RequestId>() : it->second;
}

RequestRecord* RequestTable::FindBySink(uint64_t sink_id) {
  const auto it = sinks_.find(sink_id);
  return it == sinks_.end() ? nullptr : Find(it->second);
}

void RequestTable::SetSink(RequestRecord& record, std::shared_ptr<TokenSink> sink) {
  if (record.sink != nullptr) sinks_.erase(record.sink->id());
  record.sink = std::move(sink);
  if (record.sink != nullptr) sinks_[record.sink->id()] = record.id;
}

void RequestTable::Erase(core::RequestId id) {
  const auto it = records_.find(id);
  if (it == records_.end()) return;
  SetSink(*it->second, nullptr);
  const ClientRequest& request = it->second->request;
  const auto name = names_.find(std::pair(request.tenant, request.request_id));
  std::erase(name->second, id);
  if (name->second.empty()) names_.erase(name);
  records_.erase(it);
}

std::vector<core::RequestId> RequestTable::Ids() const {
  std::vector<core::RequestId> ids;
  ids.reserve(records_.size());
  for (const auto& [id, record] : records_) ids.push_back(id);
  std::sort(ids.begin(), ids.end());
  return ids;
}

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
