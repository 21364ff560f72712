#include "tools/sim/rank/cluster_dispatcher.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
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
      applied_(group->ranks().size()) {
  using core::GroupKind;
  const GroupKind engines = group->barrier() ? GroupKind::kCoupled : GroupKind::kIndependent;
  cluster_.Apply(core::AddGroup{.group = 0, .kind = barrier() ? GroupKind::kBarrier : engines});
  core::OpenEpoch open;
  std::vector<core::PrefixCaches::Member> members;
  for (size_t g = 0; g < steps_.size(); ++g) {
    core::WorkerSpec& spec = open.members.emplace_back().spec;
    spec = options.workers.empty() ? options.worker : options.workers[g];
    if (spec.slots == 0) spec.slots = static_cast<int32_t>(group->slots());
    spec.member = g + 1;
    members.push_back({spec.member, spec.prefix_cache, spec.kv_tokens});
  }
  cluster_.Apply(open);
  if (options.cost) SetCost(*options.cost);
  expectations_.Open(members);
}

void ClusterDispatcher::SetCost(const GroupCost& cost) {
  for (size_t g = 0; g < steps_.size(); ++g)
    cluster_.Apply(core::SetCost{0, static_cast<core::WorkerIndex>(g), cost.batch, cost.terms});
}

core::RequestSpec ClusterDispatcher::SpecOf(const ServeRequest& request) const {
  core::RequestSpec spec;
  spec.id = request.id;
  spec.prefill_tokens = request.prompt;
  spec.generated_tokens = request.made;
  spec.max_new_tokens = request.max_new_tokens - request.made;
  spec.prefix = request.prefix;
  if (options_.ttft_objective_s > 0) spec.ttft_objective_s = options_.ttft_objective_s;
  if (options_.describe) options_.describe(request, spec);
  return spec;
}

void ClusterDispatcher::Arrived(ServeRequestIndex index) {
  indices_[Of(index).id] = index;
  if (status_.ok()) status_ = cluster_.Apply(core::Enqueue{SpecOf(Of(index))}).status;
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
    if (barrier() || step.busy[i]) of.report.step = ++steps_[g];
    of.report.applied_plan = applied_[g];
    of.report.load_tokens = step.resident_tokens[i];
    of.report.group_idle = barrier() ? !group_->HasWork(stepper) : group_->ranks()[g].idle();
    if (options_.kind != Kind::kDecode) of.report.prefill = PromptsOf(g);
    of.report.shared_kv_tokens = Shared(g);
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
    if (options_.worker.prefix_cache) expectations_.Ended(rank, PrefixOf(Of(index)), Of(index).output);
  }
  for (const auto& [index, rank] : step.returned) {
    of_rank(rank).preempted.push_back(Of(index).id);
    reports.returned.push_back(SpecOf(Of(index)));
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
    const core::Report report{.group = 0, .worker = of.rank, .report = of.report};
    if (status_.ok()) status_ = cluster_.Apply(report).status;
  }
  for (const core::RequestSpec& spec : reports.returned) cluster_.Apply(core::Requeue{spec});
  if (options_.kind != Kind::kOwn) return;
  // Late: the plan that was put off has not been made, and its step has begun.
  const double delay_s = plan_delay_.OnStep(reports.step_s, now_s < plan_at_s_);
  plan_at_s_ = pipelined() && !scheduler().Parked() ? now_s + delay_s : now_s;
}

core::PrefillReport ClusterDispatcher::PromptsOf(int32_t rank) const {
  core::PrefillReport report;
  report.token_budget = options_.token_budget;
  report.metered = options_.kind == Kind::kMetered;
  for (const BoundPrompt& prompt : group_->ranks()[rank].prompts) {
    if (prompt.generated > 0) continue;
    // As in the router: an engine's number of cached tokens is not known before the first token.
    const ServeRequest& request = Of(prompt.request);
    const int64_t computed = std::max<int64_t>(0, prompt.done - std::max<int64_t>(0, request.cached));
    const int64_t left = options_.kind == Kind::kPlain ? request.prompt - computed : prompt.left;
    report.prompts.push_back({request.id, std::max<int64_t>(1, left)});
  }
  return report;
}

int64_t ClusterDispatcher::Shared(int32_t g) const {
  const ServeRank& rank = group_->ranks()[g];
  const int64_t used = group_->UsedTokens(g), resident = rank.resident_tokens();
  if (used == 0 || resident <= used || rank.queued() > 0) return 0;
  return options_.worker.kv_tokens * (resident - used) / used;
}

// --- decisions ---

absl::Status ClusterDispatcher::Decide(double now_s) {
  decided_s_ = now_s;
  if (now_s < plan_at_s_) return status_;
  while (std::optional<core::Plan> plan = cluster_.Apply(core::MakePlan{.group = 0}).plan) {
    if (barrier()) {
      plans_.push_back(*std::move(plan));
      continue;
    }
    for (size_t g = 0; g < applied_.size(); ++g)
      if (plan->apply_steps[g] > 0) applied_[g] = plan->apply_steps[g];
    if (options_.kind == Kind::kMetered) level_s_ = plan->level_s;
    Place(plan->placements);
  }
  if (scheduler().totals().policy_violations > 0)
    return absl::InternalError(absl::StrCat(options_.policy.name, " returned an invalid plan"));
  return status_;
}

double ClusterDispatcher::NextDecision() const {
  return plan_at_s_ > decided_s_ ? plan_at_s_ : kNever;
}

void ClusterDispatcher::Place(const std::vector<core::Placement>& placements) {
  for (const core::Placement& placement : placements) {
    const ServeRequestIndex index = indices_.at(placement.id);
    group_->Bind(index, placement.worker);
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
  FillBudget(*group_, stepper, options_.token_budget, orders);
  if (level_s_) {
    for (RankOrder& order : orders) order.level_s = *level_s_;
  }
  return true;
}

}  // namespace bfio::sim
