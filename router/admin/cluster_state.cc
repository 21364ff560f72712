// The decision loop's answers to "what is going on": admin state and loads.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "router/app/decision_loop.h"
#include "router/core/shadow/shadow_set.h"

namespace bfio::router {
namespace {

void SetTimestamp(absl::Time time, google::protobuf::Timestamp* out) {
  const int64_t ns = absl::ToUnixNanos(time);
  out->set_seconds(ns / 1000000000);
  out->set_nanos(static_cast<int32_t>(ns % 1000000000));
}

void FillShadows(const core::Policy& policy, v1::ClusterState& state) {
  const core::ShadowSet* const shadows = policy.shadows();
  if (shadows == nullptr) return;
  for (const core::ShadowRegret& regret : shadows->regrets()) {
    v1::ShadowState& shadow = *state.add_shadows();
    shadow.set_policy(regret.policy);
    shadow.set_decisions(static_cast<uint64_t>(regret.decisions));
    shadow.set_avoided_decisions(regret.avoided.count());
    shadow.set_avoided_idle_tokens(regret.avoided.sum());
    shadow.set_missed_decisions(regret.missed.count());
    shadow.set_missed_idle_tokens(regret.missed.sum());
    shadow.set_avoided_ahead_tokens(regret.avoided_ahead);
    shadow.set_missed_ahead_tokens(regret.missed_ahead);
  }
}

}  // namespace

void DecisionLoop::FillState(v1::ClusterState& state) {
  SetTimestamp(absl::Now(), state.mutable_timestamp());
  state.set_version(options_.version);
  state.mutable_uptime()->set_seconds(absl::ToInt64Seconds(now_ - started_));
  state.set_epoch(group_.epoch());
  state.set_plan_mode(options_.plan_mode == core::PlanMode::kPipelined ? v1::PLAN_MODE_PIPELINED
                                                                       : v1::PLAN_MODE_LOCKSTEP);
  state.mutable_policy()->set_name(std::string(scheduler_.policy().name()));
  state.mutable_policy()->set_horizon(static_cast<uint32_t>(policy_options_.horizon));
  state.mutable_policy()->set_objective(policy_options_.objective);
  state.set_uncoupled(!options_.coupled);
  state.set_expected_workers(static_cast<uint32_t>(options_.workers));
  for (Member* member : group_.members()) {
    v1::WorkerState& worker = *state.add_workers();
    worker.set_worker_id(member->hello.worker_id());
    worker.set_engine(member->hello.engine());
    worker.set_slots(member->hello.slots());
    worker.set_kv_tokens(member->hello.kv_tokens());
    worker.set_phase(v1::WORKER_PHASE_JOINING);
    if (member->hello.service_s() > 0) worker.set_service_s(member->hello.service_s());
    if (member->figures.cost) FillCost(*member->figures.cost, *worker.mutable_cost());
    if (member->figures.energy) *worker.mutable_energy() = *member->figures.energy;
    if (group_.ByRank(member->rank.value_or(-1)) != member) continue;
    const core::Scheduler::WorkerAccount account = scheduler_.Account(*member->rank);
    worker.set_phase(member->draining ? v1::WORKER_PHASE_DRAINING : v1::WORKER_PHASE_SERVING);
    worker.set_rank(static_cast<uint32_t>(*member->rank));
    worker.set_active_requests(static_cast<uint32_t>(account.active));
    worker.set_inflight_requests(static_cast<uint32_t>(account.inflight));
    worker.set_load_tokens(static_cast<uint64_t>(std::max<int64_t>(0, account.load_tokens)));
    worker.set_straggler_steps(recorder_.straggler_steps(*member->rank));
    worker.set_time_per_token(account.spec.time_per_token);
    worker.set_time_offset(account.spec.time_offset);
    if (account.prefill) {
      worker.set_pending_prefill_tokens(static_cast<uint64_t>(account.prefill->pending_tokens));
      worker.set_token_budget(static_cast<uint32_t>(account.prefill->token_budget));
    }
  }
  state.set_waiting_requests(static_cast<uint32_t>(scheduler_.waiting()));
  state.set_max_waiting_requests(static_cast<uint32_t>(options_.max_waiting));
  *state.mutable_steps() = recorder_.totals();
  state.mutable_steps()->set_late_plans(static_cast<uint64_t>(scheduler_.totals().late_plans));
  state.mutable_steps()->set_drift_tokens(static_cast<double>(scheduler_.totals().drift_tokens));
  if (energy_.totals()) *state.mutable_energy() = *energy_.totals();
  *state.mutable_requests() = totals_;
  latencies_.Fill(*state.mutable_latencies());
  recorder_.FillTimes(*state.mutable_step_times());
  recorder_.FillGap(*state.mutable_solver_gap());
  state.mutable_requests()->set_refused_pool_full(totals_.refused_pool_full() + refused_full_.load());
  state.mutable_requests()->set_held_back(static_cast<uint64_t>(scheduler_.totals().held_back));
  state.mutable_requests()->set_refused_tenant(totals_.refused_tenant() + refused_tenant_.load());
  FillShadows(scheduler_.policy(), state);
  tenants_.Fill(state);
}

absl::Status DecisionLoop::FillLoads(const v1::GetLoadsRequest& request, v1::GetLoadsResponse& response) {
  const int32_t ranks = group_.serving() ? scheduler_.num_workers() : 0;
  if (request.has_dp_rank() && request.dp_rank() >= static_cast<uint32_t>(ranks)) {
    return absl::NotFoundError(
        absl::StrCat("dp_rank is ", request.dp_rank(), "; the group has ", ranks, " ranks"));
  }
  SetTimestamp(absl::Now(), response.mutable_timestamp());
  response.set_version(options_.version);
  response.set_dp_rank_count(static_cast<uint32_t>(ranks));
  const auto waiting = static_cast<uint32_t>(scheduler_.waiting());
  for (int32_t rank = 0; rank < ranks; ++rank) {
    if (request.has_dp_rank() && request.dp_rank() != static_cast<uint32_t>(rank)) continue;
    const core::Scheduler::WorkerAccount account = scheduler_.Account(rank);
    v1::SchedulerLoad& load = *response.add_loads();
    const auto running = static_cast<uint32_t>(account.active + account.inflight);
    const auto used = static_cast<uint64_t>(std::max<int64_t>(0, account.load_tokens));
    load.set_dp_rank(static_cast<uint32_t>(rank));
    load.set_num_running_reqs(running);
    load.set_num_waiting_reqs(waiting);
    load.set_num_total_reqs(running + waiting);
    load.set_num_used_tokens(used);
    load.set_max_total_num_tokens(static_cast<uint64_t>(account.spec.kv_tokens));
    load.set_token_usage(static_cast<double>(used) / static_cast<double>(account.spec.kv_tokens));
    load.set_gen_throughput(recorder_.tokens_per_second(rank, now_));
    load.set_utilization(static_cast<double>(running) / account.spec.slots);
    load.set_max_running_requests(static_cast<uint32_t>(account.spec.slots));
  }
  return absl::OkStatus();
}

}  // namespace bfio::router
