// The decision thread's answers to queries of its state.
#include <algorithm>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "router/app/decision_thread.h"
#include "router/core/choice/rule_chooser.h"

namespace bfio::router {
namespace {

std::optional<PlacementView> PlacementOf(const core::RuleChooser& chooser) {
  if (!chooser.chooses()) return std::nullopt;
  PlacementView view;
  view.rule = std::string(core::PlacementRuleName(chooser.rule()));
  view.switches = chooser.switches();
  if (!chooser.measured()) return view;
  for (const core::RuleChooser::Candidate& candidate : chooser.candidates()) {
    view.candidates.push_back(
        {std::string(core::PlacementRuleName(candidate.rule)), chooser.StepRatio(candidate.rule)});
  }
  for (const core::RuleChooser::Watched& watched : chooser.watched()) {
    view.watched.push_back({std::string(watched.policy), chooser.StepRatio(watched)});
  }
  return view;
}

}  // namespace

RouterState DecisionThread::MakeState() const {
  RouterState state;
  state.timestamp = absl::Now();
  state.uptime = now_ - started_;
  state.version = options_.version;
  state.plan_mode = options_.plan_mode;
  state.independent = options_.group_kind != core::GroupKind::kBarrier;
  const core::PolicySetting& policy = cluster_.policy_setting();
  state.policy = policy.name;
  state.horizon = policy.options.horizon;
  state.objective = policy.options.objective;
  state.expected_workers = options_.workers * options_.groups;
  for (const std::unique_ptr<Group>& group : groups_.groups()) {
    const core::Scheduler* scheduler = cluster_.group(group->options().index);
    GroupView& view = state.groups.emplace_back();
    view.index = group->options().index;
    view.name = group->options().name;
    view.kind = group->options().kind;
    if (group->key()) view.model = group->key()->model;
    view.epoch = group->epoch();
    view.ready = group->serving();
    for (MemberView& member : group->Members()) {
      WorkerView& worker = view.workers.emplace_back();
      if (member.rank) {
        worker.account = scheduler->Account(*member.rank);
        worker.straggler_steps = group->steps().straggler_steps(*member.rank);
      }
      if (const EnergyReading* reading = energy_.Of(member.id)) worker.energy = *reading;
      worker.member = std::move(member);
    }
    view.steps = group->steps().totals();
    view.step_predicted_ratio = group->predicted_ratio();
    view.distributions = group->steps().distributions();
    if (scheduler == nullptr) continue;
    view.placement = PlacementOf(scheduler->chooser());
  }
  state.retired_steps = groups_.retired_steps();
  state.retired_distributions = groups_.retired_distributions();
  state.scheduler = cluster_.totals();
  state.waiting = cluster_.waiting();
  state.max_waiting = options_.max_waiting;
  const auto hands_over = [](const auto& group) { return group->hands_over(); };
  if (std::any_of(groups_.groups().begin(), groups_.groups().end(), hands_over)) {
    const auto [waiting, oldest] = requests_.HandOffsWaiting();
    state.hand_offs = {cluster_.pool().for_prefill().requests, cluster_.PrefillsUnderWay(), waiting, oldest,
                       cluster_.Promised()};
  }
  state.replay_bytes = requests_.kept_bytes();
  state.event_queue_depth = static_cast<int64_t>(worker_events_.size() + client_events_.size());
  state.decision_log_ended = recorder_ != nullptr && recorder_->stopped();
  state.waiting_prompt_bytes = overload_.waiting_bytes() + mailbox_bytes_.load();
  state.requests = requests_.totals();
  state.requests.refused_pool_full += overload_.refused_early();
  state.requests.refused_tenant += tenants_.refused();
  state.latencies = requests_.latencies().latencies();
  state.tenants = tenants_.totals().Fill();
  state.energy = energy_.totals();
  return state;
}

absl::StatusOr<Loads> DecisionThread::MakeLoads(std::optional<uint32_t> rank) const {
  Loads loads;
  loads.timestamp = absl::Now();
  loads.version = options_.version;
  for (const std::unique_ptr<Group>& group : groups_.groups()) {
    if (!group->serving()) continue;
    const core::Scheduler* scheduler = cluster_.group(group->options().index);
    std::vector<std::string> names(static_cast<size_t>(scheduler->num_workers()));
    for (MemberView& member : group->Members()) {
      if (member.rank) names[static_cast<size_t>(*member.rank)] = std::move(member.worker_id);
    }
    for (core::WorkerIndex g = 0; g < scheduler->num_workers(); ++g, ++loads.ranks) {
      if (rank && *rank != loads.ranks) continue;
      const core::Scheduler::WorkerAccount account = scheduler->Account(g);
      RankLoad& load = loads.loads.emplace_back();
      load.rank = loads.ranks;
      load.worker_id = std::move(names[static_cast<size_t>(g)]);
      load.running_requests = account.active + account.inflight;
      load.waiting_requests = cluster_.waiting();
      load.waiting_tokens = cluster_.waiting_tokens();
      load.used_tokens = std::max<int64_t>(0, account.load_tokens);
      load.max_tokens = account.spec.kv_tokens;
      load.tokens_per_second = group->steps().tokens_per_second(g, now_);
      load.slots = account.spec.slots;
      load.hands_over = group->hands_over();
    }
  }
  if (rank && *rank >= loads.ranks) {
    return absl::NotFoundError(
        absl::StrCat("dp_rank is ", *rank, "; the router has ", loads.ranks, " ranks"));
  }
  return loads;
}

}  // namespace bfio::router
