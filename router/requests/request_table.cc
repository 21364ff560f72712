#include "router/requests/request_table.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/rng.h"
#include "common/telemetry/trace_context.h"
#include "router/worker_link/convert.h"
#include "router/worker_link/held_request.h"

namespace bfio::router {
namespace {

void SetDuration(absl::Duration duration, google::protobuf::Duration* out) {
  const int64_t seconds = absl::IDivDuration(duration, absl::Seconds(1), &duration);
  out->set_seconds(seconds);
  out->set_nanos(static_cast<int32_t>(absl::ToInt64Nanoseconds(duration)));
}

}  // namespace

core::RequestSpec RequestRecord::Spec(int64_t next_step) const {
  core::RequestSpec spec;
  spec.id = id;
  spec.prefill_tokens = int64_t{PromptTokens(request)} + delivered;
  spec.max_new_tokens = int64_t{request.max_new_tokens()} - delivered;
  if (request.has_predicted_output_tokens()) {
    spec.predicted_output_tokens =
        std::max<int64_t>(1, int64_t{request.predicted_output_tokens()} - delivered);
  }
  spec.priority = request.priority();
  spec.tenant = tenant;
  spec.generated_tokens = delivered;
  if (senior_step) spec.seniority = next_step - *senior_step;
  if (placed) spec.waited_steps = wait_steps;
  spec.deadline_us = deadline_us;
  spec.refusals = refusals;
  return spec;
}

std::string RequestRecord::LogName() const {
  const absl::string_view trace = TraceIdOf(traceparent);
  return trace.empty() ? request.request_id() : absl::StrCat(request.request_id(), " (trace ", trace, ")");
}

v1::Assignment RequestRecord::Assignment(absl::Time now) const {
  v1::Assignment assignment;
  assignment.set_handle(id);
  if (request.has_token_ids()) {
    *assignment.mutable_prompt_token_ids() = request.token_ids().ids();
    assignment.mutable_prompt_token_ids()->Add(history.begin(), history.end());
  }
  assignment.set_prompt_length(PromptTokens(request) + delivered);
  assignment.set_max_new_tokens(request.max_new_tokens() - delivered);
  *assignment.mutable_stop_token_ids() = request.stop_token_ids();
  assignment.set_ignore_eos(request.ignore_eos());
  *assignment.mutable_sampling() = request.sampling();
  // A request keeps its random stream wherever it is placed.
  if (!request.sampling().has_seed()) assignment.mutable_sampling()->set_seed(Mix64(id));
  assignment.set_first_index(delivered);
  assignment.set_traceparent(traceparent);
  assignment.set_priority(request.priority());
  if (first_token) {
    SetDuration(-absl::Nanoseconds(1), assignment.mutable_ttft_left());
  } else if (request.has_ttft_objective()) {
    SetDuration(DurationOf(request.ttft_objective()) - (now - accepted), assignment.mutable_ttft_left());
  }
  if (request.has_tpot_objective()) *assignment.mutable_tpot_objective() = request.tpot_objective();
  if (request.resumable()) {
    assignment.set_origin(OriginOf(request));
    if (!request.has_token_ids()) assignment.mutable_earlier_token_ids()->Add(history.begin(), history.end());
  }
  return assignment;
}

v1::Finish RequestRecord::MakeFinish(v1::FinishReason reason, absl::Time now) const {
  v1::Finish finish;
  finish.set_reason(reason);
  finish.mutable_usage()->set_prompt_tokens(PromptTokens(request));
  finish.mutable_usage()->set_completion_tokens(delivered);
  v1::Timing& timing = *finish.mutable_timing();
  SetDuration(placed.value_or(now) - accepted, timing.mutable_queue());
  if (first_token) SetDuration(*first_token - accepted, timing.mutable_time_to_first_token());
  SetDuration(now - accepted, timing.mutable_end_to_end());
  timing.set_wait_steps(static_cast<uint64_t>(std::max<int64_t>(0, wait_steps)));
  if (last_rank) finish.set_dp_rank(static_cast<uint32_t>(*last_rank));
  return finish;
}

RequestRecord* RequestTable::Add(core::RequestId id, v1::GenerateRequest request,
                                 std::shared_ptr<ClientStream> stream, absl::Time now) {
  if (records_.contains(id) || !names_.emplace(request.request_id(), id).second) return nullptr;
  auto record = std::make_unique<RequestRecord>();
  record->id = id;
  record->request = std::move(request);
  if (record->request.resumable() && !record->request.sampling().has_seed()) {
    record->request.mutable_sampling()->set_seed(SeedOfName(record->request.request_id()));
  }
  record->send_from = record->request.resume_from_index();
  if (stream != nullptr) record->traceparent = stream->traceparent();
  SetStream(*record, std::move(stream));
  record->tenant = tenants_.Number(record->request.tenant());
  record->accepted = now;
  return records_.emplace(id, std::move(record)).first->second.get();
}

RequestRecord* RequestTable::Find(core::RequestId id) {
  const auto it = records_.find(id);
  return it == records_.end() ? nullptr : it->second.get();
}

RequestRecord* RequestTable::FindByName(const std::string& request_id) {
  const auto it = names_.find(request_id);
  return it == names_.end() ? nullptr : Find(it->second);
}

RequestRecord* RequestTable::FindByStream(uint64_t stream_id) {
  const auto it = streams_.find(stream_id);
  return it == streams_.end() ? nullptr : Find(it->second);
}

void RequestTable::SetStream(RequestRecord& record, std::shared_ptr<ClientStream> stream) {
  if (record.stream != nullptr) streams_.erase(record.stream->id());
  record.stream = std::move(stream);
  if (record.stream != nullptr) streams_[record.stream->id()] = record.id;
}

void RequestTable::Erase(core::RequestId id) {
  const auto it = records_.find(id);
  if (it == records_.end()) return;
  SetStream(*it->second, nullptr);
  names_.erase(it->second->request.request_id());
  records_.erase(it);
}

std::vector<core::RequestId> RequestTable::Ids() const {
  std::vector<core::RequestId> ids;
  ids.reserve(records_.size());
  for (const auto& [id, record] : records_) ids.push_back(id);
  std::sort(ids.begin(), ids.end());
  return ids;
}

}  // namespace bfio::router
