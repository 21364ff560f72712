#include "tools/sim/rank/cluster_dispatcher.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "router/core/model/kv_capacity.h"
#include "router/core/policy/policy.h"

namespace bfio::sim {
namespace {

absl::Span<const uint64_t> PrefixOf(const ServeRequest& request) {
  return request.prefix == nullptr ? absl::Span<const uint64_t>()
                                   : absl::Span<const uint64_t>(*request.prefix);
}

}  // namespace

absl::StatusOr<std::unique_ptr<ClusterDispatcher>> ClusterDispatcher::Make(
    const Options& options, ServeGroup* group, const std::vector<ServeRequest>* requests,
    std::unique_ptr<core::Lookahead> lookahead) {
  BFIO_RETURN_IF_ERROR(core::MakePolicy(options.policy.name, options.policy.options).status());
  return std::unique_ptr<ClusterDispatcher>(
      new ClusterDispatcher(options, group, requests, std::move(lookahead)));
}

ClusterDispatcher::ClusterDispatcher(const Options& options, ServeGroup* group,
                                     const std::vector<ServeRequest>* requests,
                                     std::unique_ptr<core::Lookahead> lookahead)
    : options_(options),
      group_(group),
      requests_(requests),
      cluster_(options.scheduler, options.policy, {}, std::move(lookahead)),
      steps_(group->ranks().size()),
      applied_(group->ranks().size()),
      credits_(group->ranks().size()) {
  using core::GroupKind;
  const GroupKind engines = group->barrier() ? GroupKind::kCoupled : GroupKind::kIndependent;
  OpenGroup(0, barrier() ? GroupKind::kBarrier : engines, core::RequestSpec::kHandsOver);
  if (prefills() && !options.prefill_on_arrival)
    OpenGroup(1, GroupKind::kPrefill, core::RequestSpec::kDecodes);
  if (options.cost) SetCost(*options.cost);
}

void ClusterDispatcher::OpenGroup(core::GroupIndex index, core::GroupKind kind, uint32_t lacks) {
  cluster_.Apply(core::AddGroup{.group = index, .kind = kind});
  core::OpenEpoch open{.group = index, .lacks = lacks};
  std::vector<core::PrefixCaches::Member> members;
  for (auto g = static_cast<size_t>(FirstRankOf(index)); g < steps_.size(); ++g) {
    if (GroupOf(static_cast<int32_t>(g)) != index) break;
    core::WorkerSpec& spec = open.members.emplace_back().spec;
    spec = options_.workers.empty() ? options_.worker : options_.workers[g];
    if (spec.slots == 0) spec.slots = static_cast<int32_t>(group_->slots());
    spec.member = g + 1;
    members.push_back({spec.member, spec.prefix_cache, spec.kv_tokens});
  }
  cluster_.Apply(open);
  if (index == 0) expectations_.Open(members);
}

void ClusterDispatcher::SetCost(const GroupCost& cost) {
  for (core::WorkerIndex g = 0; g < group_->decode_ranks(); ++g)
    cluster_.Apply(core::SetCost{0, g, cost.batch, cost.terms});
}

core::RequestSpec ClusterDispatcher::SpecOf(const ServeRequest& request, bool decodes) const {
  core::RequestSpec spec;
  spec.id = request.id;
  spec.prefill_tokens = request.prompt;
  spec.generated_tokens = request.made;
  spec.max_new_tokens = request.max_new_tokens - request.made;
  spec.prefix = request.prefix;
  if (options_.ttft_objective_s > 0) spec.ttft_objective_s = options_.ttft_objective_s;
  if (options_.describe) options_.describe(request, spec);
  if (!prefills()) return spec;
  // As in the router, a request that has begun goes before others.
  if (const auto waited = waited_.find(request.id); waited != waited_.end()) {
    spec.priority = 1;
    spec.waited_steps = waited->second;
  }
  spec.computed_tokens = request.computed;
  decodes = decodes || request.computed > 0;
  spec.needs = decodes ? core::RequestSpec::kDecodes : core::RequestSpec::kHandsOver;
  if (!decodes) spec.max_new_tokens = 1;
  return spec;
}

void ClusterDispatcher::Arrived(ServeRequestIndex index) {
  indices_[Of(index).id] = index;
  if (prefills() && options_.prefill_on_arrival) return BindForPrefill(index);
  core::RequestSpec spec = SpecOf(Of(index), options_.keeps_prompts);
  if (options_.keeps_prompts && !cluster_.DecodesSooner(spec)) spec = SpecOf(Of(index));
  if (status_.ok()) status_ = cluster_.Apply(core::Enqueue{spec}).status;
}

void ClusterDispatcher::BindForPrefill(ServeRequestIndex index) {
  const std::vector<ServeRank>& ranks = group_->ranks();
  const auto least = std::min_element(
      ranks.begin() + group_->decode_ranks(), ranks.end(),
      [](const ServeRank& a, const ServeRank& b) { return a.prompt_tokens < b.prompt_tokens; });
  group_->Bind(index, static_cast<int32_t>(least - ranks.begin()));
}

void ClusterDispatcher::DropExpired(double now_s) {
  for (; !hand_offs_.empty() && hand_offs_.front().first + options_.hand_off_age_s <= now_s;
       hand_offs_.pop_front()) {
    const auto [since_s, index] = hand_offs_.front();
    const ServeRequest& request = Of(index);
    if (request.handed_over_s != since_s || !cluster_.pool().Waits(request.id)) continue;
    ++expired_;
    cluster_.Apply(core::Cancel{request.id});
    group_->DropKv(index);
    if (options_.prefill_on_arrival) {
      BindForPrefill(index);
    } else {
      cluster_.Apply(core::Requeue{SpecOf(request)});
    }
  }
}

// --- reports ---

void ClusterDispatcher::Stepped(int32_t stepper, const ServeStep& step, double now_s) {
  const auto [first, end] = group_->RanksOf(stepper);
  StepReports reports{.step_s = step.seconds};
  for (int32_t g = first; g < end; ++g) {
    const auto i = static_cast<size_t>(g - first);
    RankReport& of = reports.ranks.emplace_back();
    of.rank = g;
    // An engine without requests takes no steps.
    if (step.prefills && options_.prefill_on_arrival) continue;
    if (barrier() || step.busy[i]) of.report.step = ++steps_[g];
    of.report.applied_plan = applied_[g];
    of.report.load_tokens = step.resident_tokens[i];
    const ServeRank& rank = group_->ranks()[g];
    of.report.group_idle = barrier() ? !group_->HasWork(stepper) : rank.idle() && rank.in_transfer.empty();
    if (options_.kind != Kind::kDecode) of.report.prefill = PromptsOf(g);
    of.report.shared_kv_tokens = core::SharedKvTokens(rank.decodes, rank.decode_context,
                                                      group_->UsedTokens(g), options_.worker.kv_tokens);
    if (options_.hints) of.hints = options_.hints(g);
  }
  const auto of_rank = [&](int32_t rank) -> RankReport& {
    return reports.ranks[static_cast<size_t>(rank - first)];
  };
  for (const auto& [index, rank] : step.first_tokens) {
    if (!options_.worker.prefix_cache) break;
    const int64_t cached = Of(index).cached, expected = expected_.extract(index).mapped();
    of_rank(rank).cached.push_back({Of(index).id, cached});
    expectations_.Observed(rank, expected, cached);
    expected_tokens_ += expected;
    found_tokens_ += std::min(expected, cached);
  }
  for (const auto& [index, rank] : step.ended) {
    of_rank(rank).finished.push_back(Of(index).id);
    indices_.erase(Of(index).id);
    waited_.erase(Of(index).id);
    if (options_.worker.prefix_cache) expectations_.Ended(rank, PrefixOf(Of(index)), Of(index).output);
  }
  for (const auto& [index, rank] : step.returned) {
    of_rank(rank).preempted.push_back(Of(index).id);
    reports.returned.push_back(SpecOf(Of(index)));
    if (step.prefills) hand_offs_.emplace_back(now_s, index);
  }
  for (RankReport& of : reports.ranks) {
    // As in the router, which receives the tokens of such engines.
    if (options_.kind != Kind::kPlain || !group_->barrier() || step.prefills) break;
    core::SlotCredit& credit = credits_[of.rank];
    credit.Ended(std::ssize(of.finished));
    credit.Stepped();
    of.report.extra_slots = credit.Of(static_cast<int32_t>(group_->slots()), 0);
  }
  reports_.push_back(std::move(reports));
  for (; std::ssize(reports_) > options_.scheduler.report_delay_steps; reports_.pop_front())
    Deliver(reports_.front(), now_s);
}

void ClusterDispatcher::Deliver(StepReports& reports, double now_s) {
  for (RankReport& of : reports.ranks) {
    if (of.report.step == 0) continue;
    of.report.finished = of.finished;
    of.report.preempted = of.preempted;
    of.report.cached = of.cached;
    of.report.hints = of.hints;
    const core::GroupIndex group = GroupOf(of.rank);
    const core::Report report{.group = group, .worker = of.rank - FirstRankOf(group), .report = of.report};
    if (status_.ok()) status_ = cluster_.Apply(report).status;
  }
  for (const core::RequestSpec& spec : reports.returned) {
    options_.prefill_on_arrival ? cluster_.Apply(core::Enqueue{spec}) : cluster_.Apply(core::Requeue{spec});
  }
  if (options_.kind != Kind::kOwn) return;
  // Late: the plan that was put off has not been made, and its step has begun.
  const double delay_s = plan_delay_.OnStep(reports.step_s, now_s < plan_at_s_);
  plan_at_s_ = pipelined() && !scheduler().Parked() ? now_s + delay_s : now_s;
}

core::PrefillReport ClusterDispatcher::PromptsOf(int32_t rank) const {
  core::PrefillReport report;
  report.token_budget = GroupOf(rank) == 0 ? options_.token_budget : options_.prefill_budget;
  report.metered = options_.kind == Kind::kMetered;
  for (const ServeRequestIndex index : group_->ranks()[rank].in_transfer)
    report.prompts.push_back({Of(index).id, 1});
  for (const BoundPrompt& prompt : group_->ranks()[rank].prompts) {
    if (prompt.generated > 0) continue;
    // As in the router: an engine's number of cached tokens is not known before the first token.
    const ServeRequest& request = Of(prompt.request);
    const int64_t found = std::max(request.computed, request.cached);
    const int64_t computed = std::max<int64_t>(0, prompt.done - std::max<int64_t>(0, found));
    const int64_t left =
        options_.kind == Kind::kPlain ? request.prompt - request.computed - computed : prompt.left;
    report.prompts.push_back({request.id, std::max<int64_t>(1, left)});
  }
  return report;
}

// --- decisions ---

absl::Status ClusterDispatcher::Decide(double now_s) {
  decided_s_ = now_s;
  DropExpired(now_s);
  if (now_s < plan_at_s_) return status_;
  for (const core::GroupIndex group : cluster_.DecisionOrder()) {
    while (std::optional<core::Plan> plan = cluster_.Apply(core::MakePlan{.group = group}).plan) {
      if (barrier()) {
        plans_.push_back(*std::move(plan));
        continue;
      }
      const int32_t first = FirstRankOf(group);
      for (size_t g = 0; g < plan->apply_steps.size(); ++g)
        if (plan->apply_steps[g] > 0) applied_[first + g] = plan->apply_steps[g];
      if (options_.kind == Kind::kMetered && group == 0) level_s_ = plan->level_s;
      Place(plan->placements, first);
    }
  }
  if (scheduler().totals().policy_violations > 0)
    return absl::InternalError(absl::StrCat(options_.policy.name, " returned an invalid plan"));
  return status_;
}

double ClusterDispatcher::NextDecision() const {
  const double expires_s = hand_offs_.empty() ? kNever : hand_offs_.front().first + options_.hand_off_age_s;
  return std::min(plan_at_s_ > decided_s_ ? plan_at_s_ : kNever, expires_s);
}

void ClusterDispatcher::Place(const std::vector<core::Placement>& placements, int32_t first_rank) {
  for (const core::Placement& placement : placements) {
    const ServeRequestIndex index = indices_.at(placement.id);
    group_->Bind(index, first_rank + placement.worker);
    if (first_rank > 0) waited_.insert({placement.id, placement.wait_steps});
    if (!options_.worker.prefix_cache) continue;
    const ServeRequest& request = Of(index);
    expected_[index] = expectations_.Find(placement.worker, PrefixOf(request), request.prompt);
    expectations_.Placed(placement.worker, PrefixOf(request), request.prompt);
  }
}

bool ClusterDispatcher::Order(int32_t stepper, std::vector<RankOrder>& orders) {
  // The paper's group takes steps as long as any request is there.
  bool steps = group_->HasWork(stepper) || (options_.kind == Kind::kDecode && !indices_.empty());
  if (barrier() && !plans_.empty() && plans_.front().apply_step <= steps_[0] + 1) {
    steps = true;
    std::fill(applied_.begin(), applied_.end(), plans_.front().apply_step);
    level_s_ = plans_.front().level_s;
    Place(plans_.front().placements);
    plans_.pop_front();
  }
  if (!steps) return false;
  const bool prefills = GroupOf(group_->RanksOf(stepper).first) == 1;
  FillBudget(*group_, stepper, prefills ? options_.prefill_budget : options_.token_budget, orders);
  if (level_s_ && !prefills) {
    for (RankOrder& order : orders) order.level_s = *level_s_;
  }
  return true;
}

}  // namespace bfio::sim
