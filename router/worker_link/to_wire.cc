#include "router/worker_link/to_wire.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "common/net/wire_time.h"
#include "router/worker_link/held_request.h"

namespace bfio::router {
namespace {

uint32_t ToMs(absl::Duration duration) {
  return static_cast<uint32_t>(absl::ToInt64Milliseconds(duration));
}

// Appends `first`, then `second`.
void AppendAll(const std::vector<uint32_t>& first, const std::vector<uint32_t>& second,
               google::protobuf::RepeatedField<uint32_t>& out) {
  out.Reserve(static_cast<int>(first.size() + second.size()));
  out.Add(first.begin(), first.end());
  out.Add(second.begin(), second.end());
}

}  // namespace

void ToWire(const EpochOffer& epoch, v1::Epoch& out) {
  out.set_epoch(epoch.epoch);
  out.set_rank(epoch.rank);
  out.set_world_size(epoch.world_size);
  out.set_communicator_id(epoch.communicator_id);
  out.set_plan_mode(epoch.plan_mode == core::PlanMode::kPipelined ? v1::PLAN_MODE_PIPELINED
                                                                  : v1::PLAN_MODE_LOCKSTEP);
  out.set_form_timeout_ms(ToMs(epoch.form_timeout));
  out.set_step_timeout_ms(ToMs(epoch.step_timeout));
  out.mutable_cancellations()->Add(epoch.cancellations.begin(), epoch.cancellations.end());
  out.set_router_instance(epoch.router_instance);
  out.set_announce(epoch.announce);
  out.set_retain_ms(ToMs(epoch.retain));
  out.set_uncoupled(epoch.independent);
  out.set_group(epoch.group);
}

void ToWire(const PlanPart& plan, absl::Span<const Assignment> assignments, v1::Plan& out) {
  out.set_epoch(plan.epoch);
  out.set_apply_step(static_cast<uint64_t>(plan.apply_step));
  for (const Assignment& assignment : assignments) ToWire(assignment, *out.add_assignments());
  out.mutable_cancellations()->Add(plan.cancellations.begin(), plan.cancellations.end());
  if (plan.level_s) out.set_level_s(*plan.level_s);
}

void ToWire(const Assignment& assignment, v1::Assignment& out) {
  static const auto* const none = new std::vector<uint32_t>;
  const ClientRequest& request = *assignment.request;
  const std::vector<uint32_t>& history = assignment.history == nullptr ? *none : *assignment.history;
  out.set_handle(assignment.id);
  if (request.has_prompt_ids()) AppendAll(request.prompt, history, *out.mutable_prompt_token_ids());
  out.set_prompt_length(request.prompt_tokens + assignment.first_index);
  out.set_max_new_tokens(request.max_new_tokens - assignment.first_index);
  out.mutable_stop_token_ids()->Add(request.stop_token_ids.begin(), request.stop_token_ids.end());
  out.set_ignore_eos(request.ignore_eos);
  ToWire(request.sampling, assignment.seed, *out.mutable_sampling());
  out.set_first_index(assignment.first_index);
  if (assignment.traceparent != nullptr) out.set_traceparent(*assignment.traceparent);
  out.set_priority(request.priority);
  out.set_kv_on_demand(assignment.kv_on_demand);
  out.set_waited_steps(static_cast<int32_t>(std::clamp<int64_t>(
      assignment.waited_steps, std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max())));
  if (request.resumable) {
    out.set_origin(OriginOf(request, assignment.seed));
    if (!request.has_prompt_ids()) {
      out.mutable_earlier_token_ids()->Add(history.begin(), history.end());
    }
    if (assignment.history_logprobs != nullptr)
      ToWire(assignment.history_logprobs->view(), *out.mutable_earlier_logprobs());
  }
}

}  // namespace bfio::router
