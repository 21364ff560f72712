#include "router/admin/router_state.h"

#include <algorithm>

#include "common/net/wire_time.h"

namespace bfio::router {
namespace {

uint64_t Count(int64_t value) {
  return static_cast<uint64_t>(std::max<int64_t>(0, value));
}

uint64_t ToNs(absl::Duration duration) {
  return Count(absl::ToInt64Nanoseconds(duration));
}

void Fill(const Distribution& from, v1::Distribution& out) {
  out.mutable_upper_bounds()->Assign(from.bounds().begin(), from.bounds().end());
  out.mutable_counts()->Assign(from.counts().begin(), from.counts().end());
  out.set_sum(from.sum());
}

void Fill(const std::optional<FittedValue>& from, v1::FittedValue* (v1::StepCost::*field)(),
          v1::StepCost& out) {
  if (!from) return;
  v1::FittedValue* value = (out.*field)();
  value->set_value(from->value);
  value->set_standard_error(from->standard_error);
}

void Fill(const StepCostEstimate& from, v1::StepCost& out) {
  Fill(from.c, &v1::StepCost::mutable_c_s, out);
  Fill(from.tl, &v1::StepCost::mutable_tl_s_per_token, out);
}

void Fill(const EnergyReading& from, v1::Energy& out) {
  out.set_device(from.device);
  out.set_busy_j(from.busy_j);
  out.set_barrier_j(from.barrier_j);
  out.set_parked_j(from.parked_j);
  out.set_busy_s(from.busy_s);
  out.set_barrier_s(from.barrier_s);
  out.set_parked_s(from.parked_s);
  out.set_watts(from.watts);
  if (from.idle_watts) out.set_idle_watts(*from.idle_watts);
}

void Fill(const core::Scheduler::WorkerAccount& from, v1::WorkerState& out) {
  out.set_active_requests(static_cast<uint32_t>(from.active));
  out.set_inflight_requests(static_cast<uint32_t>(from.inflight));
  out.set_load_tokens(Count(from.load_tokens));
  out.set_reserved_kv_tokens(Count(from.reserved_kv_tokens));
  out.set_time_per_token(from.spec.time_per_token);
  out.set_time_offset(from.spec.time_offset);
  if (from.prefill) {
    out.set_pending_prefill_tokens(Count(from.prefill->pending_tokens()));
    out.set_token_budget(static_cast<uint32_t>(from.prefill->token_budget));
  }
}

void Fill(const WorkerView& from, const std::string& group, v1::WorkerState& out) {
  const MemberView& member = from.member;
  out.set_worker_id(member.worker_id);
  out.set_group(group);
  out.set_engine(member.engine);
  out.set_slots(static_cast<uint32_t>(member.slots));
  out.set_kv_tokens(Count(member.kv_tokens));
  out.set_phase(v1::WORKER_PHASE_JOINING);
  if (member.service_s > 0) out.set_service_s(member.service_s);
  out.set_step_prefill_tokens(Count(member.telemetry.step_prefill_tokens));
  out.set_prefill_tokens(Count(member.telemetry.prefill_tokens));
  out.set_extra_slots(member.telemetry.extra_slots);
  out.set_prefix_cache_queries(Count(member.telemetry.prefix_cache_queries));
  out.set_prefix_cache_hits(Count(member.telemetry.prefix_cache_hits));
  if (const std::optional<EngineLoad>& load = member.telemetry.engine_load) {
    out.set_engine_requests(Count(load->requests));
    out.set_engine_tokens(Count(load->tokens));
  }
  if (member.telemetry.cost) Fill(*member.telemetry.cost, *out.mutable_cost());
  if (from.energy) Fill(*from.energy, *out.mutable_energy());
  if (!member.rank) return;
  out.set_phase(member.draining ? v1::WORKER_PHASE_DRAINING : v1::WORKER_PHASE_SERVING);
  out.set_rank(static_cast<uint32_t>(*member.rank));
  out.set_straggler_steps(Count(from.straggler_steps));
  if (from.account) Fill(*from.account, out);
}

void Fill(const StepTotals& from, v1::StepTotals& out) {
  out.set_steps(Count(from.steps));
  out.set_imbalance_tokens(from.imbalance_tokens);
  out.set_max_load_tokens(from.max_load_tokens);
  out.set_mean_load_tokens(from.mean_load_tokens);
  out.set_barrier_wait_s(from.barrier_wait_s);
  out.set_rank_step_s(from.rank_step_s);
  out.set_gap_s(from.gap_s);
  out.set_gap_count(Count(from.gap_count));
  out.set_max_local_s(from.max_local_s);
  out.set_generated_tokens(Count(from.generated_tokens));
  out.set_decisions(Count(from.decisions));
  out.set_decide_s(from.decide_s);
  out.set_decide_max_s(from.decide_max_s);
  out.set_saturated_steps(Count(from.saturated_steps));
  out.set_silent_ranks(Count(from.silent_ranks));
  out.set_decisions_stopped_early(Count(from.decisions_stopped_early));
}

void Fill(const core::SchedulerTotals& from, v1::StepTotals& out) {
  out.set_late_plans(Count(from.late_plans));
  out.set_drift_tokens(static_cast<double>(from.drift_tokens));
}

void Fill(const StepDistributions& from, v1::StepTimes& out) {
  Fill(from.local_s, *out.mutable_local_s());
  Fill(from.barrier_wait_s, *out.mutable_barrier_wait_s());
  Fill(from.gap_s, *out.mutable_gap_s());
  Fill(from.decide_s, *out.mutable_decide_s());
}

void Fill(const RequestTotals& from, v1::RequestTotals& out) {
  out.set_accepted(Count(from.accepted));
  out.set_completed(Count(from.completed));
  out.set_cancelled(Count(from.cancelled));
  out.set_aborted(Count(from.aborted));
  out.set_failed(Count(from.failed));
  out.set_replayed(Count(from.replayed));
  out.set_refused_pool_full(Count(from.refused_pool_full));
  out.set_refused_invalid(Count(from.refused_invalid));
  out.set_replays_refused(Count(from.replays_refused));
  out.set_suspects_ended(Count(from.suspects_ended));
  out.set_tokens_lost(Count(from.tokens_lost));
  out.set_tokens_duplicated(Count(from.tokens_duplicated));
  out.set_resumed(Count(from.resumed));
  out.set_resume_refused(Count(from.resume_refused));
  out.set_resume_expired(Count(from.resume_expired));
  out.set_recovered(Count(from.recovered));
  out.set_restarted(Count(from.restarted));
  out.set_refused_tenant(Count(from.refused_tenant));
  out.set_refused_memory(Count(from.refused_memory));
  out.set_slow_readers(Count(from.slow_readers));
  out.set_queue_timeouts(Count(from.queue_timeouts));
  out.set_preempted(Count(from.preempted));
  out.set_agent_calls(Count(from.agent_calls));
  out.set_refused_parent_deadline(Count(from.refused_parent_deadline));
  out.set_refused_by_workers(Count(from.refused_by_workers));
  out.set_handed_over(Count(from.handed_over));
  out.set_hand_offs_expired(Count(from.hand_offs_expired));
  out.set_hand_offs_failed(Count(from.hand_offs_failed));
  out.set_not_handed_over(Count(from.not_handed_over));
  out.set_ttft_objectives_met(Count(from.ttft_objectives_met));
  out.set_ttft_objectives_missed(Count(from.ttft_objectives_missed));
}

void Fill(const RequestLatencies& from, v1::RequestLatencies& out) {
  Fill(from.queue_time_s, *out.mutable_queue_time_s());
  Fill(from.time_to_first_token_s, *out.mutable_time_to_first_token_s());
  Fill(from.inter_token_s, *out.mutable_inter_token_s());
  Fill(from.time_per_output_token_s, *out.mutable_time_per_output_token_s());
  Fill(from.end_to_end_s, *out.mutable_end_to_end_s());
  Fill(from.prompt_tokens, *out.mutable_prompt_tokens());
  Fill(from.output_tokens, *out.mutable_output_tokens());
}

void Fill(const TenantTotal& from, v1::TenantTotals& out) {
  out.set_tenant(from.tenant);
  out.set_accepted(Count(from.accepted));
  out.set_completed(Count(from.completed));
  out.set_prompt_tokens(Count(from.prompt_tokens));
  out.set_generated_tokens(Count(from.generated_tokens));
}

void Fill(const EnergyTotals& from, v1::EnergyTotals& out) {
  out.set_busy_j(from.busy_j);
  out.set_barrier_j(from.barrier_j);
  out.set_parked_j(from.parked_j);
}

void Fill(const PlacementView& from, v1::PlacementState& out) {
  out.set_rule(from.rule);
  out.set_switches(Count(from.switches));
  const auto fill = [](const PlacementView::Candidate& candidate, v1::PlacementState::Candidate& added) {
    added.set_rule(candidate.rule);
    added.set_step_ratio(candidate.step_ratio);
  };
  for (const PlacementView::Candidate& candidate : from.candidates) fill(candidate, *out.add_candidates());
  for (const PlacementView::Candidate& watched : from.watched) fill(watched, *out.add_watched());
}

void Fill(const GroupView& from, v1::GroupState& out) {
  out.set_name(from.name);
  out.set_index(static_cast<uint32_t>(from.index));
  out.set_independent(from.kind != core::GroupKind::kBarrier);
  out.set_epoch(from.epoch);
  out.set_ready(from.ready);
  out.set_model(from.model);
  if (from.placement) Fill(*from.placement, *out.mutable_placement());
  if (from.step_predicted_ratio) out.set_step_predicted_ratio(*from.step_predicted_ratio);
  Fill(from.steps, *out.mutable_steps());
  Fill(from.scheduler, *out.mutable_steps());
  Fill(from.distributions, *out.mutable_step_times());
}

// Fills in the groups, and the sums over them.
void FillGroups(const RouterState& state, v1::ClusterState& out) {
  StepTotals steps = state.retired_steps;
  StepDistributions distributions = state.retired_distributions;
  uint64_t epoch = 0;
  for (const GroupView& group : state.groups) {
    Fill(group, *out.add_groups());
    for (const WorkerView& worker : group.workers) Fill(worker, group.name, *out.add_workers());
    steps += group.steps;
    distributions += group.distributions;
    epoch = std::max(epoch, group.epoch);
  }
  out.set_epoch(epoch);
  Fill(steps, *out.mutable_steps());
  Fill(state.scheduler, *out.mutable_steps());
  Fill(distributions, *out.mutable_step_times());
}

}  // namespace

v1::ClusterState ToProto(const RouterState& state) {
  v1::ClusterState out;
  SetTimestamp(state.timestamp, out.mutable_timestamp());
  out.set_version(state.version);
  out.mutable_uptime()->set_seconds(absl::ToInt64Seconds(state.uptime));
  out.set_plan_mode(state.plan_mode == core::PlanMode::kPipelined ? v1::PLAN_MODE_PIPELINED
                                                                  : v1::PLAN_MODE_LOCKSTEP);
  out.mutable_policy()->set_name(state.policy);
  out.mutable_policy()->set_horizon(static_cast<uint32_t>(state.horizon));
  out.mutable_policy()->set_objective(state.objective);
  out.set_uncoupled(state.independent);
  out.set_expected_workers(static_cast<uint32_t>(state.expected_workers));
  FillGroups(state, out);
  out.set_waiting_requests(static_cast<uint32_t>(state.waiting));
  out.set_max_waiting_requests(static_cast<uint32_t>(state.max_waiting));
  if (state.hand_offs) {
    v1::HandOffState& of = *out.mutable_hand_offs();
    of.set_prompts_waiting(static_cast<uint32_t>(state.hand_offs->prompts_waiting));
    of.set_prompts_under_way(static_cast<uint32_t>(state.hand_offs->prompts_under_way));
    of.set_waiting(static_cast<uint32_t>(state.hand_offs->waiting));
    of.set_oldest_s(absl::ToDoubleSeconds(state.hand_offs->oldest));
    of.set_promised_slots(static_cast<uint32_t>(state.hand_offs->promised.requests));
    of.set_promised_kv_tokens(Count(state.hand_offs->promised.tokens));
  }
  Fill(state.requests, *out.mutable_requests());
  out.mutable_requests()->set_held_back(Count(state.scheduler.held_back));
  Fill(state.latencies, *out.mutable_latencies());
  for (const TenantTotal& tenant : state.tenants) Fill(tenant, *out.add_tenants());
  if (state.energy) Fill(*state.energy, *out.mutable_energy());
  out.mutable_process()->set_waiting_prompt_bytes(Count(state.waiting_prompt_bytes));
  out.mutable_process()->set_replay_bytes(Count(state.replay_bytes));
  out.mutable_process()->set_event_queue_depth(static_cast<uint32_t>(state.event_queue_depth));
  out.mutable_process()->set_decision_log_ended(state.decision_log_ended);
  return out;
}

v1::StepSummary ToProto(const StepSummary& summary) {
  v1::StepSummary out;
  out.set_group(static_cast<uint32_t>(summary.group));
  out.set_epoch(summary.epoch);
  out.set_step(Count(summary.step));
  for (const int64_t load : summary.load_tokens) out.add_load_tokens(Count(load));
  for (const int64_t tokens : summary.prefill_tokens) out.add_prefill_tokens(Count(tokens));
  out.mutable_active_requests()->Assign(summary.active_requests.begin(), summary.active_requests.end());
  for (const absl::Duration local : summary.local) out.add_local_ns(ToNs(local));
  for (const absl::Duration wait : summary.barrier_wait) out.add_barrier_wait_ns(ToNs(wait));
  out.set_imbalance_tokens(Count(summary.imbalance_tokens));
  out.set_waiting_requests(static_cast<uint32_t>(summary.waiting_requests));
  out.set_assigned(static_cast<uint32_t>(summary.assigned));
  out.set_decide_ns(ToNs(summary.decide));
  out.set_stopped_early(summary.stopped_early);
  if (summary.rank) out.set_rank(static_cast<uint32_t>(*summary.rank));
  return out;
}

}  // namespace bfio::router
