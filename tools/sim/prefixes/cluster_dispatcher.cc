// Runs the router's core in front of the simulated ranks, with the events that a router gets from engines.
#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "common/base/status_macros.h"
#include "router/core/policy/policy.h"
#include "router/core/prefix/prefix_caches.h"
#include "router/core/scheduler/cluster.h"
#include "tools/sim/prefixes/dispatcher.h"

namespace bfio::sim {
namespace {

// The value that the router uses in front of engines (router/app).
constexpr double kFreeShare = 0.05;

core::SchedulerOptions OptionsOf() {
  core::SchedulerOptions options;
  options.max_waiting = int64_t{1} << 40;
  options.admission.kind = core::KvAdmissionOptions::Kind::kProtection;
  options.admission.alpha = kFreeShare;
  return options;
}

class ClusterDispatcher final : public PrefixDispatcher {
 public:
  ClusterDispatcher(const core::PolicySetting& policy, const PrefixRunOptions& options,
                    const std::vector<EngineModel>& ranks)
      : engine_(options.engine),
        ttft_objective_s_(options.ttft_objective_s),
        ranks_(ranks),
        cluster_(OptionsOf(), policy),
        states_(ranks.size()) {
    const EngineModelOptions& engine = options.engine;
    cluster_.Apply(core::AddGroup{
        .group = 0, .kind = options.barrier ? core::GroupKind::kCoupled : core::GroupKind::kIndependent});
    core::OpenEpoch open;
    std::vector<core::PrefixCaches::Member> members;
    for (size_t g = 0; g < ranks.size(); ++g) {
      core::EpochMember& member = open.members.emplace_back();
      member.spec.slots = engine.slots;
      member.spec.kv_tokens = engine.kv_tokens;
      member.spec.prefix_cache = true;
      member.spec.member = g + 1;
      members.push_back({member.spec.member, true, engine.kv_tokens});
    }
    cluster_.Apply(open);
    // A real router fits the cost to the steps.
    for (size_t g = 0; g < ranks.size(); ++g)
      cluster_.Apply(core::SetCost{0, static_cast<core::WorkerIndex>(g), engine.cost});
    expectations_.Open(members);
  }

  std::vector<Dispatch> Arrived(const PrefixRequest& request) override {
    core::RequestSpec spec;
    spec.id = request.id;
    spec.prefill_tokens = request.prompt_tokens;
    spec.max_new_tokens = request.max_new_tokens;
    spec.prefix = request.prefix;
    if (ttft_objective_s_ > 0) spec.ttft_objective_s = ttft_objective_s_;
    cluster_.Apply(core::Enqueue{spec});
    requests_[request.id] = {&request, 0};
    return Plan();
  }

  std::vector<Dispatch> Stepped(int32_t rank, const EngineStep& step) override {
    State& state = states_[static_cast<size_t>(rank)];
    core::StepReport report;
    report.step = ++state.step;
    report.applied_plan = state.applied_plan;
    report.load_tokens = step.load_tokens;
    std::vector<core::CachedPrompt> cached;
    for (const EngineStep::First& first : step.first_tokens) {
      cached.push_back({first.request->id, first.cached});
      const int64_t expected = std::exchange(requests_[first.request->id].expected, 0);
      expectations_.Observed(rank, expected, first.cached);
      expected_tokens_ += expected;
      found_tokens_ += std::min(expected, first.cached);
    }
    report.cached = cached;
    std::vector<core::RequestId> finished;
    for (const PrefixRequest* request : step.finished) {
      finished.push_back(request->id);
      expectations_.Ended(rank, Prefix(*request), request->output_tokens);
      requests_.erase(request->id);
    }
    report.finished = finished;
    report.prefill.emplace();
    report.prefill->token_budget = engine_.token_budget;
    report.prefill->metered = engine_.metered;
    const EngineModel& engine = ranks_[static_cast<size_t>(rank)];
    int64_t resident = 0;
    for (const HeldRequest& held : engine.Held()) {
      resident += held.request->prompt_tokens + held.generated;
      if (held.generated > 0) continue;
      // As in the router: the number of cached tokens is not known before the first token.
      const int64_t left = engine_.metered ? held.left : held.request->prompt_tokens - held.computed;
      report.prefill->prompts.push_back({held.request->id, std::max<int64_t>(1, left)});
    }
    report.group_idle = engine.idle();
    report.shared_kv_tokens = Shared(engine, resident);
    cluster_.Apply(core::Report{.group = 0, .worker = rank, .report = report});
    return Plan();
  }

  int64_t waiting() const override { return cluster_.waiting(); }
  std::optional<double> level_s() const override { return level_s_; }
  int64_t expected_tokens() const override { return expected_tokens_; }
  int64_t found_tokens() const override { return found_tokens_; }

 private:
  struct State {
    int64_t step = 0, applied_plan = 0;
  };
  struct Known {
    const PrefixRequest* request = nullptr;
    // The result of PrefixCaches::Find when the request was placed.
    int64_t expected = 0;
  };

  static absl::Span<const uint64_t> Prefix(const PrefixRequest& request) {
    return request.prefix == nullptr ? absl::Span<const uint64_t>()
                                     : absl::Span<const uint64_t>(*request.prefix);
  }

  // KV tokens that requests can hold beyond the memory by sharing blocks, at the present ratio of sharing.
  int64_t Shared(const EngineModel& engine, int64_t resident) const {
    const int64_t used = (engine.pool().size() - engine.pool().free_blocks()) * kEngineBlockTokens;
    if (used == 0 || resident <= used || engine.waiting() > 0) return 0;
    return engine_.kv_tokens * (resident - used) / used;
  }

  std::vector<Dispatch> Plan() {
    std::vector<Dispatch> sent;
    while (const std::optional<core::Plan> plan = cluster_.Apply(core::MakePlan{.group = 0}).plan)
      Send(*plan, sent);
    return sent;
  }

  void Send(const core::Plan& plan, std::vector<Dispatch>& sent) {
    for (size_t g = 0; g < states_.size(); ++g)
      if (plan.apply_steps[g] > 0) states_[g].applied_plan = plan.apply_steps[g];
    if (engine_.metered) level_s_ = plan.level_s;
    for (const core::Placement& placement : plan.placements) {
      Known& known = requests_[placement.id];
      const PrefixRequest& request = *known.request;
      known.expected = expectations_.Find(placement.worker, Prefix(request), request.prompt_tokens);
      expectations_.Placed(placement.worker, Prefix(request), request.prompt_tokens);
      sent.push_back({&request, placement.worker});
    }
  }

  const EngineModelOptions engine_;
  const double ttft_objective_s_;
  const std::vector<EngineModel>& ranks_;
  core::Cluster cluster_;
  std::vector<State> states_;
  absl::flat_hash_map<core::RequestId, Known> requests_;
  // A copy of the core's model of the ranks' caches, which the core does not expose.
  core::PrefixCaches expectations_;
  std::optional<double> level_s_;
  int64_t expected_tokens_ = 0, found_tokens_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<PrefixDispatcher>> MakeClusterDispatcher(
    const PrefixRunOptions& options, const std::vector<EngineModel>& ranks) {
  core::PolicySetting setting;
  setting.name = options.policy;
  setting.options.seed = options.seed;
  BFIO_RETURN_IF_ERROR(core::MakePolicy(setting.name, setting.options).status());
  return std::make_unique<ClusterDispatcher>(setting, options, ranks);
}

}  // namespace bfio::sim
