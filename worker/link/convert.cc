#include "worker/link/convert.h"

#include <algorithm>
#include <cmath>

namespace bfio::worker {
namespace {

template <typename Repeated>
void AddActive(const std::vector<ResidentSequence>& active, Repeated* out) {
  for (const ResidentSequence& sequence : active) {
    v1::ActiveRequest* one = out->Add();
    one->set_handle(sequence.handle);
    one->set_kv_tokens(static_cast<uint64_t>(sequence.kv_tokens));
    one->set_generated_tokens(static_cast<uint32_t>(sequence.generated_tokens));
  }
}

void Fill(const Hello& hello, v1::WorkerMessage& out) {
  v1::Hello* to = out.mutable_hello();
  to->set_worker_id(hello.worker_id);
  to->set_slots(static_cast<uint32_t>(hello.limits.slots));
  to->set_kv_tokens(static_cast<uint64_t>(hello.limits.kv_tokens));
  to->set_max_sequence_tokens(static_cast<uint64_t>(hello.limits.max_sequence_tokens));
  to->set_engine(hello.engine);
  to->set_barrier(hello.barrier);
  to->set_communicator_offer(hello.communicator_offer);
  AddActive(hello.active, to->mutable_active());
  to->set_version(hello.version);
  to->set_router_instance(hello.router_instance);
  to->set_service_s(hello.service_s);
  to->set_steps_alone(true);
  to->set_group(hello.group);
  to->set_worker_instance(hello.worker_instance);
  to->set_stream(hello.stream);
  to->set_model(hello.model);
  to->set_logprobs(hello.logprobs);
}

void Fill(const Logprobs& from, v1::Logprobs* to) {
  to->mutable_token_logprobs()->Add(from.tokens.begin(), from.tokens.end());
  for (const TopToken& top : from.top) {
    to->add_top_token_ids(top.id);
    to->add_top_logprobs(top.logprob);
  }
}

Logprobs FromProto(const v1::Logprobs& from) {
  Logprobs to;
  to.tokens.assign(from.token_logprobs().begin(), from.token_logprobs().end());
  const int count = std::min(from.top_token_ids_size(), from.top_logprobs_size());
  for (int i = 0; i < count; ++i) to.top.push_back({from.top_token_ids(i), from.top_logprobs(i)});
  return to;
}

v1::FinishReason ReasonOf(FinishCause cause) {
  return cause == FinishCause::kStop ? v1::FINISH_REASON_STOP : v1::FINISH_REASON_LENGTH;
}

void Fill(const HeldRequest& held, v1::HeldRequest* out) {
  const SequenceRequest& request = held.request;
  v1::Assignment* to = out->mutable_assignment();
  to->set_handle(request.handle);
  to->mutable_prompt_token_ids()->Add(request.prompt.begin(), request.prompt.end());
  to->set_prompt_length(static_cast<uint32_t>(request.prompt_length));
  to->set_first_index(static_cast<uint32_t>(request.first_index));
  to->set_origin(held.note.origin);
  to->mutable_earlier_token_ids()->Add(held.note.earlier_tokens.begin(), held.note.earlier_tokens.end());
  out->mutable_token_ids()->Add(held.tokens.begin(), held.tokens.end());
  if (request.sampling.logprobs) {
    Fill(held.note.earlier_logprobs, to->mutable_earlier_logprobs());
    Fill(held.logprobs, out->mutable_logprobs());
  }
  if (held.ended.has_value()) out->set_ended(ReasonOf(*held.ended));
}

void Fill(const Announcement& announcement, v1::WorkerMessage& out) {
  v1::Announcement* to = out.mutable_announcement();
  to->set_epoch(announcement.epoch);
  for (const HeldRequest& held : announcement.requests) Fill(held, to->add_requests());
}

void Fill(const EpochReady& ready, v1::WorkerMessage& out) {
  v1::EpochReady* to = out.mutable_epoch_ready();
  to->set_epoch(ready.epoch);
  to->set_error(ready.error);
  to->mutable_missing_ranks()->Add(ready.missing_ranks.begin(), ready.missing_ranks.end());
  to->set_communicator_offer(ready.communicator_offer);
  AddActive(ready.active, to->mutable_active());
}

void FillOutput(const StepOutput& output, v1::StepReport* to) {
  const int count = static_cast<int>(output.tokens.size());
  to->mutable_handles()->Reserve(count);
  to->mutable_token_ids()->Reserve(count);
  // One token each, so token_counts stays empty.
  for (const StepOutput::Token& token : output.tokens) {
    to->add_handles(token.handle);
    to->add_token_ids(token.id);
  }
  to->mutable_completion_hints()->Add(output.completion_hints.begin(), output.completion_hints.end());
  for (const StepOutput::Alternatives& one : output.alternatives) {
    v1::RequestLogprobs* logprobs = to->add_logprobs();
    logprobs->set_index(static_cast<uint32_t>(one.token));
    Fill(Logprobs{{output.log_probabilities[one.token]}, one.top}, logprobs->mutable_logprobs());
  }
  for (const StepOutput::Finish& finish : output.finished) {
    v1::Finished* one = to->add_finished();
    one->set_handle(finish.handle);
    one->set_reason(ReasonOf(finish.cause));
  }
  to->set_load_tokens(static_cast<uint64_t>(output.load_tokens));
  to->set_prefill_tokens(static_cast<uint64_t>(output.prefill_tokens));
}

void Fill(const std::optional<FittedValue>& from, v1::FittedValue* (v1::StepCost::*field)(),
          v1::StepCost* to) {
  if (!from) return;
  v1::FittedValue* value = (to->*field)();
  value->set_value(from->value);
  value->set_standard_error(from->standard_error);
}

void Fill(const StepCostEstimate& from, v1::StepCost* to) {
  Fill(from.c, &v1::StepCost::mutable_c_s, to);
  Fill(from.tl, &v1::StepCost::mutable_tl_s_per_token, to);
}

void Fill(const BatchCost& from, v1::BatchCost* to) {
  to->set_c_s(from.c_s);
  to->set_a_s_per_token(from.a_s_per_token);
  to->set_b0_tokens(static_cast<uint32_t>(from.b0_tokens));
  to->set_k1_s_per_pair(from.k1_s_per_pair);
  to->set_k2_s_per_token(from.k2_s_per_token);
}

void Fill(const EnergyReading& from, v1::Energy* to) {
  to->set_device(from.device);
  to->set_busy_j(from.sums.busy_j);
  to->set_barrier_j(from.sums.barrier_j);
  to->set_parked_j(from.sums.parked_j);
  to->set_busy_s(from.sums.busy_s);
  to->set_barrier_s(from.sums.barrier_s);
  to->set_parked_s(from.sums.parked_s);
  to->set_watts(from.watts);
  if (from.idle_watts.has_value()) to->set_idle_watts(*from.idle_watts);
}

void Fill(const StepReport& report, v1::WorkerMessage& out) {
  v1::StepReport* to = out.mutable_step_report();
  to->set_epoch(report.epoch);
  to->set_step(static_cast<uint64_t>(report.step));
  to->set_applied_plan(static_cast<uint64_t>(report.applied_plan));
  FillOutput(report.output, to);
  for (const Rejection& rejection : report.rejected) {
    v1::Rejection* one = to->add_rejected();
    one->set_handle(rejection.handle);
    // absl::StatusCode and google.rpc.Code agree by design.
    one->set_code(static_cast<uint32_t>(rejection.code));
    one->set_message(rejection.message);
  }
  to->mutable_preempted()->Add(report.output.preempted.begin(), report.output.preempted.end());
  to->set_active_requests(static_cast<uint32_t>(report.active_requests));
  to->set_free_slots(static_cast<uint32_t>(report.free_slots));
  to->set_free_kv_tokens(static_cast<uint64_t>(report.free_kv_tokens));
  to->set_local_ns(static_cast<uint64_t>(report.local_ns));
  to->set_barrier_wait_ns(static_cast<uint64_t>(report.barrier_wait_ns));
  if (report.gap_ns.has_value()) to->set_gap_ns(static_cast<uint64_t>(*report.gap_ns));
  to->set_group_max_load_tokens(static_cast<uint64_t>(report.group.max_load_tokens));
  to->set_group_sum_load_tokens(static_cast<uint64_t>(report.group.sum_load_tokens));
  to->set_group_max_local_ns(static_cast<uint64_t>(report.group.max_local_ns));
  to->set_group_sum_local_ns(static_cast<uint64_t>(report.group.sum_local_ns));
  to->set_group_idle(report.group_idle);
  to->set_barrier_error(report.barrier_error);
  to->mutable_missing_ranks()->Add(report.missing_ranks.begin(), report.missing_ranks.end());
  if (report.cost.has_value()) Fill(*report.cost, to->mutable_cost());
  if (report.batch_cost.has_value()) Fill(*report.batch_cost, to->mutable_cost()->mutable_batch());
  if (report.energy.has_value()) Fill(*report.energy, to->mutable_energy());
  to->mutable_batch()->set_tokens(static_cast<uint64_t>(report.output.batch.tokens));
  to->mutable_batch()->set_prefill_pairs(report.output.batch.prefill_pairs);
  to->mutable_batch()->set_decode_context(report.output.batch.decode_context);
  if (report.prefill.has_value()) {
    to->set_token_budget(static_cast<uint32_t>(report.prefill->token_budget));
    for (const PendingPrompt& prompt : report.prefill->prompts) {
      v1::PendingPrompt* one = to->add_pending_prompts();
      one->set_handle(prompt.handle);
      one->set_tokens(static_cast<uint32_t>(prompt.tokens));
    }
  }
}

void Fill(const Leave& leave, v1::WorkerMessage& out) {
  out.mutable_leave()->set_reason(leave.reason);
}

SequenceRequest FromAssignment(const v1::Assignment& from) {
  SequenceRequest request;
  request.handle = from.handle();
  request.prompt.assign(from.prompt_token_ids().begin(), from.prompt_token_ids().end());
  request.prompt_length = from.prompt_length();
  request.max_new_tokens = from.max_new_tokens();
  request.stop_token_ids.assign(from.stop_token_ids().begin(), from.stop_token_ids().end());
  request.ignore_eos = from.ignore_eos();
  request.priority = from.priority();
  const v1::SamplingParams& sampling = from.sampling();
  request.sampling.temperature = sampling.temperature();
  if (sampling.has_top_p()) request.sampling.top_p = sampling.top_p();
  if (sampling.has_top_k())
    request.sampling.top_k = static_cast<int32_t>(std::min<uint32_t>(sampling.top_k(), INT32_MAX));
  request.sampling.seed = sampling.seed();
  if (sampling.has_logprobs())
    request.sampling.logprobs = static_cast<int32_t>(std::min<uint32_t>(sampling.logprobs(), INT32_MAX));
  request.kv_on_demand = from.kv_on_demand();
  request.waited_steps = from.waited_steps();
  request.first_index = from.first_index();
  return request;
}

Plan FromPlan(const v1::Plan& from) {
  Plan plan;
  plan.epoch = from.epoch();
  plan.apply_step = static_cast<int64_t>(from.apply_step());
  plan.assignments.reserve(static_cast<size_t>(from.assignments_size()));
  for (const v1::Assignment& assignment : from.assignments())
    plan.assignments.push_back(FromAssignment(assignment));
  const auto noted = [](const v1::Assignment& assignment) { return !assignment.origin().empty(); };
  if (std::any_of(from.assignments().begin(), from.assignments().end(), noted)) {
    for (const v1::Assignment& assignment : from.assignments()) {
      const auto& earlier = assignment.earlier_token_ids();
      plan.notes.push_back(
          {assignment.origin(), {earlier.begin(), earlier.end()}, FromProto(assignment.earlier_logprobs())});
    }
  }
  plan.cancellations.assign(from.cancellations().begin(), from.cancellations().end());
  if (from.has_level_s() && std::isfinite(from.level_s())) plan.level_s = from.level_s();
  return plan;
}

Epoch FromEpoch(const v1::Epoch& from) {
  Epoch epoch;
  epoch.group = {from.epoch(), static_cast<int32_t>(from.rank()), static_cast<int32_t>(from.world_size()),
                 from.communicator_id()};
  epoch.plan_mode = from.plan_mode() == v1::PLAN_MODE_LOCKSTEP ? PlanMode::kLockstep : PlanMode::kPipelined;
  epoch.form_timeout = absl::Milliseconds(from.form_timeout_ms());
  epoch.step_timeout = absl::Milliseconds(from.step_timeout_ms());
  epoch.cancellations.assign(from.cancellations().begin(), from.cancellations().end());
  epoch.router_instance = from.router_instance();
  epoch.announce = from.announce();
  epoch.retain = absl::Milliseconds(from.retain_ms());
  epoch.uncoupled = from.uncoupled();
  epoch.group_name = from.group();
  return epoch;
}

}  // namespace

void ToProto(const OutMessage& message, v1::WorkerMessage& out) {
  out.Clear();
  std::visit([&](const auto& one) { Fill(one, out); }, message);
}

std::optional<InMessage> FromProto(const v1::RouterMessage& message) {
  switch (message.message_case()) {
    case v1::RouterMessage::kEpoch: return FromEpoch(message.epoch());
    case v1::RouterMessage::kPlan: return FromPlan(message.plan());
    case v1::RouterMessage::kShutdown: return Shutdown{message.shutdown().reason()};
    case v1::RouterMessage::kNotice: return Notice{message.notice().text()};
    case v1::RouterMessage::MESSAGE_NOT_SET: break;
  }
  return std::nullopt;
}

}  // namespace bfio::worker
