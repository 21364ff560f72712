#include <algorithm>
#include <limits>
#include <optional>

#include "router/record/codec.h"

namespace bfio::record {
namespace {

// Requests per record of a state: far below the limit of a record, and enough to keep the overhead small.
constexpr size_t kRequestsPerPart = 2048;

bool IsFloat(double value) {
  return static_cast<double>(static_cast<float>(value)) == value;
}

void HintsOut(absl::Span<const core::CompletionHint> hints, core::RequestId base, v1::LoggedReport& out) {
  const bool floats =
      std::all_of(hints.begin(), hints.end(), [](const auto& hint) { return IsFloat(hint.probability); });
  core::RequestId before = base;
  for (const auto& [id, probability] : hints) {
    out.add_hint_ids(IdOut(id, before));
    before = id;
    if (floats) {
      out.add_hints(static_cast<float>(probability));
    } else {
      out.add_exact_hints(probability);
    }
  }
}

template <class Logged>
void PrefillOut(const std::optional<core::PrefillReport>& prefill, core::RequestId base, Logged& out) {
  if (!prefill) return;
  v1::LoggedPrefill& to = *out.mutable_prefill();
  to.set_token_budget(prefill->token_budget);
  to.set_metered(prefill->metered);
  for (const auto& [id, tokens] : prefill->prompts) {
    to.add_ids(IdOut(id, base));
    to.add_tokens(tokens);
    base = id;
  }
}

template <class Logged>
void CostOut(const std::optional<BatchCost>& cost, Logged& out) {
  if (!cost) return;
  v1::LoggedCost& to = *out.mutable_cost();
  to.set_c_s(cost->c_s);
  to.set_a_s_per_token(cost->a_s_per_token);
  to.set_b0_tokens(cost->b0_tokens);
  to.set_k1_s_per_pair(cost->k1_s_per_pair);
  to.set_k2_s_per_token(cost->k2_s_per_token);
}

// Omits the names of the prompt's blocks, which would make parts of a state too large; the state has no
// caches either.
void StateRequestOut(const core::RequestSpec& spec, core::RequestId base, v1::LoggedRequest& out) {
  ToLog(spec, base, out);
  out.clear_prefix();
}

void WorkerOut(const core::GroupState::Worker& from, core::RequestId base, v1::LoggedState::Worker& out) {
  const auto& [spec, last_step, planned_step, applied, idle, drift, residents, inflight, drops, prefill,
               extra_slots, shared_kv_tokens] = from;
  ToLog(spec, *out.mutable_worker());
  out.set_last_step(last_step);
  out.set_planned_step(planned_step);
  out.set_applied(applied);
  out.set_idle(idle);
  out.set_drift(drift);
  out.set_extra_slots(extra_slots);
  out.set_shared_kv_tokens(shared_kv_tokens);
  for (const auto& [request, in_flight, first_step, enqueued_step, dropped, settled_age, drift_share,
                    planned_for] : residents) {
    v1::LoggedState::Resident& to = *out.add_residents();
    StateRequestOut(request, base, *to.mutable_request());
    to.set_inflight(in_flight);
    to.set_first_step(first_step);
    to.set_enqueued_step(enqueued_step);
    to.set_dropped(dropped);
    to.set_settled_age(settled_age);
    to.set_drift(drift_share);
    to.set_planned_for(planned_for);
  }
  for (const auto& [apply_step, id, drop] : inflight) {
    v1::LoggedState::Inflight& to = *out.add_inflight();
    to.set_apply_step(apply_step);
    to.set_id(IdOut(id, base));
    to.set_drop(drop);
  }
  IdsOut(drops, base, *out.mutable_drops());
  PrefillOut(prefill, base, out);
}

void TotalsOut(const core::SchedulerTotals& from, v1::LoggedState::Totals& out) {
  const auto& [plans, policy_calls, late_plans, drift_tokens, unknown_ids, policy_violations, preempted,
               held_back] = from;
  out.set_plans(plans);
  out.set_policy_calls(policy_calls);
  out.set_late_plans(late_plans);
  out.set_drift_tokens(drift_tokens);
  out.set_unknown_ids(unknown_ids);
  out.set_policy_violations(policy_violations);
  out.set_preempted(preempted);
  out.set_held_back(held_back);
}

// Writes a group without its workers, which are written before it.
void GroupOut(const core::GroupState& from, core::RequestId base, v1::LoggedState::Group& out) {
  const auto& [group, kind, workers, open, model, reported_step, planned_step, decided_step, reports,
               placed_in_step, holder, levels, traffic, totals] = from;
  out.set_group(group);
  out.set_kind(static_cast<int32_t>(kind));
  out.set_num_workers(static_cast<int32_t>(workers.size()));
  out.set_open(open);
  out.set_model(model);
  out.set_reported_step(reported_step);
  out.set_planned_step(planned_step);
  out.set_decided_step(decided_step);
  out.set_reports(reports);
  out.set_placed_in_step(placed_in_step);
  if (holder) out.set_holder(IdOut(*holder, base));
  for (const auto& [step, level_s] : levels) {
    out.add_level_steps(step);
    // 0 means no level.
    out.add_levels(level_s.value_or(0));
  }
  const auto& [placed_per_step, prompt_tokens, prompt_squares, output_tokens, step_s, chunk_tokens] = traffic;
  for (const core::FadingMean& mean :
       {placed_per_step, prompt_tokens, prompt_squares, output_tokens, step_s, chunk_tokens}) {
    v1::LoggedState::Mean& to = *out.add_traffic();
    to.set_weight(mean.weight);
    to.set_value(mean.value);
  }
  TotalsOut(totals, *out.mutable_totals());
}

}  // namespace

void IdsOut(absl::Span<const core::RequestId> ids, core::RequestId base, IdField& out) {
  for (const core::RequestId id : ids) {
    out.Add(IdOut(id, base));
    base = id;
  }
}

void ToLog(const core::SchedulerOptions& options, v1::LoggedOptions& out) {
  const auto& [max_waiting, wait, window, admission, hold_after_steps, mode, report_delay_steps] = options;
  out.set_lockstep(mode == core::PlanMode::kLockstep);
  out.set_max_waiting(max_waiting);
  out.set_window(window);
  out.set_report_delay_steps(report_delay_steps);
  out.set_admission(static_cast<int32_t>(admission.kind));
  out.set_admission_confidence(admission.confidence);
  out.set_admission_alpha(admission.alpha);
  out.set_admission_most_steps(admission.most_steps);
  out.set_hold_after_steps(hold_after_steps);
  out.set_wait(static_cast<int32_t>(wait.kind));
  out.set_wait_fixed_tokens(wait.fixed_tokens.value_or(0));
  out.set_wait_most_steps(wait.most_steps);
}

void ToLog(const BatchCost& cost, v1::LoggedWorkerTime& out) {
  CostOut(cost, out);
}

void ToLog(const core::PolicySetting& setting, v1::LoggedPolicy& out) {
  const core::PolicyOptions& options = setting.options;
  out.set_name(setting.name);
  out.set_seed(options.seed);
  out.set_horizon(options.horizon);
  out.set_objective(options.objective);
  out.set_discount(options.discount);
  out.set_choices(options.choices);
  out.set_wait_ratio(options.wait_ratio);
}

void ToLog(const core::RequestSpec& spec, core::RequestId base, v1::LoggedRequest& out) {
  const auto& [id, prefill, computed, max_new, predicted, priority, tenant, generated, seniority, deadline_us,
               ttft_objective_s, waited, refusals, steps_alone, model, held_to, prefix] = spec;
  out.set_id(IdOut(id, base));
  out.set_prefill_tokens(prefill);
  out.set_computed_tokens(computed);
  out.set_max_new_tokens(max_new);
  if (predicted) out.set_predicted_output_tokens(*predicted);
  out.set_priority(priority);
  out.set_tenant(tenant);
  out.set_generated_tokens(generated);
  out.set_seniority(seniority);
  if (waited) out.set_waited_steps(*waited);
  out.set_refusals(refusals);
  out.set_steps_alone(steps_alone);
  out.set_model(model);
  if (held_to) {
    out.set_held_group(held_to->group);
    out.set_held_worker(held_to->worker);
  }
  if (ttft_objective_s) out.set_ttft_objective_s(*ttft_objective_s);
  if (deadline_us != core::RequestSpec::kNoDeadline) out.set_deadline_us(deadline_us);
  if (prefix != nullptr) out.mutable_prefix()->Add(prefix->begin(), prefix->end());
}

void ToLog(const core::WorkerSpec& spec, v1::LoggedWorker& out) {
  const auto& [slots, kv_tokens, accepts_new, time_per_token, time_offset, prefill_time, service_time,
               prefix_cache, member, cost] = spec;
  out.set_slots(slots);
  out.set_kv_tokens(kv_tokens);
  out.set_refuses_new(!accepts_new);
  if (time_per_token != 1) out.set_time_per_token(time_per_token);
  if (time_offset != 0) out.set_time_offset(time_offset);
  if (service_time != 1) out.set_service_time(service_time);
  out.set_prefill_time(prefill_time);
  out.set_prefix_cache(prefix_cache);
  out.set_member(member);
  CostOut(cost, out);
}

void ToLog(absl::Span<const core::EpochMember> members, core::RequestId base, v1::LoggedEpoch& out) {
  for (const auto& [spec, resident, recovered] : members) {
    v1::LoggedMember& to = *out.add_members();
    ToLog(spec, *to.mutable_worker());
    core::RequestId before = base;
    for (const auto& [id, kv_tokens] : resident) {
      to.add_resident(IdOut(id, before));
      to.add_resident_kv_tokens(kv_tokens);
      before = id;
    }
    for (const core::RequestSpec& request : recovered) ToLog(request, base, *to.add_recovered());
  }
}

void ToLog(core::WorkerIndex rank, const core::StepReport& report, bool with_hints, core::RequestId base,
           v1::LoggedReport& out) {
  const auto& [step, applied_plan, load_tokens, finished, rejected, preempted, hints, group_idle, extra_slots,
               shared_kv_tokens, prefill, cached] = report;
  out.set_rank(rank);
  out.set_step(step);
  out.set_applied_behind(
      static_cast<int64_t>(static_cast<uint64_t>(step) - static_cast<uint64_t>(applied_plan)));
  out.set_load_tokens(load_tokens);
  IdsOut(finished, base, *out.mutable_finished());
  IdsOut(rejected, base, *out.mutable_rejected());
  IdsOut(preempted, base, *out.mutable_preempted());
  out.set_group_idle(group_idle);
  out.set_extra_slots(extra_slots);
  out.set_shared_kv_tokens(shared_kv_tokens);
  PrefillOut(prefill, base, out);
  for (const auto& [id, tokens] : cached) {
    out.add_cached_ids(IdOut(id, base));
    out.add_cached_tokens(tokens);
  }
  if (with_hints) HintsOut(hints, base, out);
}

void ToLog(const core::Plan& plan, core::RequestId base, v1::LoggedPlan& out) {
  out.set_apply_step(plan.apply_step);
  out.mutable_apply_steps()->Add(plan.apply_steps.begin(), plan.apply_steps.end());
  core::RequestId before = base;
  for (const auto& [id, worker, wait_steps] : plan.placements) {
    out.add_placed(IdOut(id, before));
    out.add_workers(worker);
    out.add_wait_steps(wait_steps);
    before = id;
  }
  before = base;
  for (const auto& [id, worker] : plan.drops) {
    out.add_dropped(IdOut(id, before));
    out.add_drop_workers(worker);
    before = id;
  }
  if (plan.level_s) out.set_level_s(*plan.level_s);
}

void ToLog(const core::ClusterState& state, core::RequestId base,
           const std::function<void(const v1::DecisionRecord&)>& take) {
  const auto& [pool, groups, last_group, retired] = state;
  const auto& [waiting, service, clock] = pool;
  for (const core::GroupState& group : groups) {
    for (const core::GroupState::Worker& worker : group.workers) {
      v1::DecisionRecord record;
      WorkerOut(worker, base, *record.mutable_state()->add_workers());
      take(record);
    }
    v1::DecisionRecord record;
    GroupOut(group, base, *record.mutable_state()->add_groups());
    take(record);
  }
  for (size_t first = 0; first < waiting.size(); first += kRequestsPerPart) {
    v1::DecisionRecord record;
    for (const auto& [spec, enqueued_step, held_back, passed_over] :
         absl::MakeSpan(waiting).subspan(first, kRequestsPerPart)) {
      v1::LoggedState::Waiting& to = *record.mutable_state()->add_waiting();
      StateRequestOut(spec, base, *to.mutable_request());
      to.set_enqueued_step(enqueued_step);
      to.set_held_back(held_back);
      to.set_passed_over(passed_over);
    }
    take(record);
  }
  v1::DecisionRecord record;
  v1::LoggedState& last = *record.mutable_state();
  last.set_last(true);
  for (const auto& [tenant, served] : service.tenants) {
    v1::LoggedState::Tenant& to = *last.add_tenants();
    to.set_tenant(tenant);
    to.set_served(served);
  }
  v1::LoggedState::Pool& rest = *last.mutable_pool();
  rest.set_last_served(service.last_served);
  rest.set_tenant_floor(service.floor);
  const auto& [now, next, counted] = clock;
  rest.set_now(now);
  rest.set_next(next);
  rest.set_counted(counted);
  if (last_group >= 0) rest.set_last_group(last_group);
  TotalsOut(retired, *rest.mutable_retired());
  take(record);
}

}  // namespace bfio::record
