#include "tools/sim/rank/cluster_dispatcher.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "common/base/status_macros.h"
#include "router/core/policy/policy.h"

namespace bfio::sim {
namespace {

// The value that the router uses in front of engines (router/app).
constexpr double kFreeShare = 0.05;
// Without a limit: large enough that it never binds, small enough that sums do not overflow.
constexpr int64_t kUnlimitedKv = std::numeric_limits<int64_t>::max() / 4;

core::SchedulerOptions OptionsOf(const ClusterDispatcher::Options& options) {
  core::SchedulerOptions result;
  result.max_waiting = int64_t{1} << 40;
  result.plan_mode = options.pipelined ? core::PlanMode::kPipelined : core::PlanMode::kLockstep;
  if (options.kv_tokens > 0) {
    result.admission.kind = core::KvAdmissionOptions::Kind::kProtection;
    result.admission.alpha = kFreeShare;
  }
  return result;
}

core::RequestId IdOf(ServeRequestIndex index) {
  return static_cast<core::RequestId>(index) + 1;
}
ServeRequestIndex IndexOf(core::RequestId id) {
  return static_cast<ServeRequestIndex>(id) - 1;
}

absl::Span<const uint64_t> PrefixOf(const ServeRequest& request) {
  return request.prefix == nullptr ? absl::Span<const uint64_t>()
                                   : absl::Span<const uint64_t>(*request.prefix);
}

}  // namespace

absl::StatusOr<std::unique_ptr<ClusterDispatcher>> ClusterDispatcher::Make(
    const Options& options, ServeGroup* group, const std::vector<ServeRequest>* requests) {
  BFIO_RETURN_IF_ERROR(core::MakePolicy(options.policy.name, options.policy.options).status());
  return std::unique_ptr<ClusterDispatcher>(new ClusterDispatcher(options, group, requests));
}

ClusterDispatcher::ClusterDispatcher(const Options& options, ServeGroup* group,
                                     const std::vector<ServeRequest>* requests)
    : options_(options),
      group_(group),
      requests_(requests),
      cluster_(OptionsOf(options), options.policy),
      steps_(group->ranks().size()),
      applied_(group->ranks().size()) {
  using core::GroupKind;
  const GroupKind coupled = group->barrier() ? GroupKind::kCoupled : GroupKind::kIndependent;
  cluster_.Apply(core::AddGroup{.group = 0, .kind = own() ? GroupKind::kBarrier : coupled});
  core::OpenEpoch open;
  std::vector<core::PrefixCaches::Member> members;
  for (size_t g = 0; g < steps_.size(); ++g) {
    core::WorkerSpec& spec = open.members.emplace_back().spec;
    spec.slots = static_cast<int32_t>(group->slots());
    spec.kv_tokens = options.kv_tokens > 0 ? options.kv_tokens : kUnlimitedKv;
    spec.prefix_cache = options.prefix_caches;
    spec.member = g + 1;
    members.push_back({spec.member, options.prefix_caches, spec.kv_tokens});
  }
  cluster_.Apply(open);
  SetCost(options.cost);
  expectations_.Open(members);
}

void ClusterDispatcher::SetCost(const BatchCost& cost) {
  for (size_t g = 0; g < steps_.size(); ++g)
    cluster_.Apply(core::SetCost{0, static_cast<core::WorkerIndex>(g), cost});
}

void ClusterDispatcher::Arrived(ServeRequestIndex index) {
  core::RequestSpec spec;
  spec.id = IdOf(index);
  spec.prefill_tokens = Of(index).prompt;
  spec.max_new_tokens = Of(index).max_new_tokens;
  spec.prefix = Of(index).prefix;
  if (options_.ttft_objective_s > 0) spec.ttft_objective_s = options_.ttft_objective_s;
  cluster_.Apply(core::Enqueue{spec});
}

// --- reports ---

void ClusterDispatcher::Stepped(int32_t stepper, const ServeStep& step, double now_s) {
  const auto [first, end] = group_->RanksOf(stepper);
  const size_t before = reports_.size();
  const bool idle = !group_->HasWork(stepper);
  for (int32_t g = first; g < end; ++g) {
    // An engine without requests takes no steps.
    if (!own() && !step.busy[static_cast<size_t>(g - first)]) continue;
    RankReport& report = reports_.emplace_back();
    report.rank = g;
    report.report.step = ++steps_[g];
    report.report.applied_plan = applied_[g];
    report.report.load_tokens = step.resident_tokens[static_cast<size_t>(g - first)];
    report.report.prefill = PromptsOf(g);
    report.report.group_idle = own() ? idle : group_->ranks()[g].idle();
    report.report.shared_kv_tokens = Shared(g);
  }
  const auto report_of = [&](int32_t rank) {
    return std::find_if(reports_.begin() + static_cast<std::ptrdiff_t>(before), reports_.end(),
                        [&](const RankReport& report) { return report.rank == rank; });
  };
  for (const auto& [index, rank] : step.first_tokens) TakeFirstToken(index, *report_of(rank));
  for (const auto& [index, rank] : step.ended) {
    report_of(rank)->finished.push_back(IdOf(index));
    if (options_.prefix_caches) expectations_.Ended(rank, PrefixOf(Of(index)), Of(index).output);
  }
  step_s_ = step.seconds;
}

void ClusterDispatcher::TakeFirstToken(ServeRequestIndex index, RankReport& report) {
  if (!options_.prefix_caches) return;
  report.cached.push_back({IdOf(index), Of(index).cached});
  const auto it = expected_.find(index);
  expectations_.Observed(report.rank, it->second, Of(index).cached);
  expected_tokens_ += it->second;
  found_tokens_ += std::min(it->second, Of(index).cached);
  expected_.erase(it);
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
    report.prompts.push_back({IdOf(prompt.request), std::max<int64_t>(1, left)});
  }
  return report;
}

int64_t ClusterDispatcher::Shared(int32_t g) const {
  const ServeRank& rank = group_->ranks()[g];
  const int64_t used = group_->UsedTokens(g), resident = rank.resident_tokens();
  if (used == 0 || resident <= used || rank.queued() > 0) return 0;
  return options_.kv_tokens * (resident - used) / used;
}

// --- decisions ---

void ClusterDispatcher::Decide(double now_s) {
  decided_s_ = now_s;
  for (RankReport& report : reports_) {
    report.report.finished = report.finished;
    report.report.cached = report.cached;
    cluster_.Apply(core::Report{.group = 0, .worker = report.rank, .report = report.report});
  }
  if (own() && !reports_.empty()) {
    // Late: the plan that was put off has not been made, and its step has begun.
    const double delay_s = plan_delay_.OnStep(step_s_, now_s < plan_at_s_);
    plan_at_s_ = options_.pipelined && !cluster_.group(0)->Parked() ? now_s + delay_s : now_s;
  }
  reports_.clear();
  if (now_s >= plan_at_s_) MakePlans();
}

void ClusterDispatcher::MakePlans() {
  while (std::optional<core::Plan> plan = cluster_.Apply(core::MakePlan{.group = 0}).plan) {
    if (own()) {
      plans_.push_back(*std::move(plan));
      continue;
    }
    for (size_t g = 0; g < applied_.size(); ++g)
      if (plan->apply_steps[g] > 0) applied_[g] = plan->apply_steps[g];
    if (options_.kind == Kind::kMetered) level_s_ = plan->level_s;
    Place(plan->placements);
  }
}

double ClusterDispatcher::NextDecision() const {
  return plan_at_s_ > decided_s_ ? plan_at_s_ : kNever;
}

void ClusterDispatcher::Place(const std::vector<core::Placement>& placements) {
  for (const core::Placement& placement : placements) {
    const ServeRequestIndex index = IndexOf(placement.id);
    group_->Bind(index, placement.worker);
    if (!options_.prefix_caches) continue;
    const ServeRequest& request = Of(index);
    expected_[index] = expectations_.Find(placement.worker, PrefixOf(request), request.prompt);
    expectations_.Placed(placement.worker, PrefixOf(request), request.prompt);
  }
}

bool ClusterDispatcher::Order(int32_t stepper, std::vector<RankOrder>& orders) {
  bool planned = false;
  if (own() && !plans_.empty() && plans_.front().apply_step <= steps_[0] + 1) {
    planned = true;
    std::fill(applied_.begin(), applied_.end(), plans_.front().apply_step);
    level_s_ = plans_.front().level_s;
    Place(plans_.front().placements);
    plans_.pop_front();
  }
  if (!planned && !group_->HasWork(stepper)) return false;
  FillBudget(*group_, stepper, options_.token_budget, orders);
  if (level_s_) {
    for (RankOrder& order : orders) order.level_s = *level_s_;
  }
  return true;
}

}  // namespace bfio::sim
