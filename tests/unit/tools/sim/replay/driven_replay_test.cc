// Replays of groups with traffic of their own: rules of placement that change, ranks that keep to levels, and
// ranks with prefix caches. A replay places every request where the router did.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/rng.h"
#include "router/core/scheduler/cluster.h"
#include "tests/unit/tools/sim/replay/replays.h"

namespace bfio::sim {
namespace {

// A recorded group whose workers run what they are given.
class DrivenGroup {
 public:
  struct Running {
    core::RequestSpec spec;
    // Tokens that it generates; those that it holds; prompt tokens that are not computed yet.
    int64_t output = 0, load = 0, prompt = 0;
    bool first = true;
  };

  DrivenGroup(const std::string& policy, core::GroupKind kind, int64_t segment_bytes,
              const std::string& lookahead = "none")
      : barrier_(kind == core::GroupKind::kBarrier),
        recorder_(std::make_unique<MemoryLog>(&segments, segment_bytes), {"test", 1 << 20}, Options(),
                  {policy, {}}, lookahead),
        cluster_(Options(), {policy, {}}, {}, *core::MakeLookahead(lookahead), &recorder_) {
    cluster_.Apply(core::AddGroup{0, kind});
  }

  void Open(const std::vector<core::WorkerSpec>& workers) {
    core::OpenEpoch epoch{0, std::vector<core::EpochMember>(workers.size())};
    for (size_t g = 0; g < workers.size(); ++g) epoch.members[g].spec = workers[g];
    workers_.assign(workers.size(), {});
    for (const core::RequestId id : cluster_.Apply(epoch).displaced)
      cluster_.Apply(core::Requeue{requests_.at(id).spec});
  }
  // `prompt`: how much of its prompt is still to be computed after it was placed.
  void Arrive(core::RequestSpec spec, int64_t output, int64_t prompt = 0) {
    spec.id = ++last_;
    if (cluster_.Apply(core::Enqueue{spec}).status.ok())
      requests_[spec.id] = {spec, output, spec.prefill_tokens, prompt};
  }
  // Makes all plans that there are; a barrier has one per step, by `rule` if it is given.
  void Plan(std::optional<core::PlacementRule> rule = std::nullopt) {
    while (const auto plan = cluster_.Apply(core::MakePlan{0, false, rule}).plan) {
      levels += plan->level_s.has_value() ? 1 : 0;
      for (const core::Placement& placement : plan->placements)
        workers_[static_cast<size_t>(placement.worker)].running.push_back(requests_.at(placement.id));
      for (size_t g = 0; g < workers_.size(); ++g)
        workers_[g].applied =
            barrier_ ? plan->apply_step : std::max(workers_[g].applied, plan->apply_steps[g]);
      if (barrier_) break;
    }
  }
  // One step of each worker that has requests, or of all where they meet in a barrier. `fill` adds what else
  // its worker reports.
  void Step(const std::function<void(size_t g, std::vector<Running>&, core::StepReport&)>& fill = {}) {
    bool idle = true;
    int64_t largest = 0;
    for (const Worker& worker : workers_) idle = idle && worker.running.empty();
    for (size_t g = 0; g < workers_.size(); ++g) {
      std::vector<Running>& running = workers_[g].running;
      if (!barrier_ && running.empty()) continue;
      core::StepReport report = {.step = ++workers_[g].step, .applied_plan = workers_[g].applied};
      if (fill) fill(g, running, report);
      std::vector<core::RequestId> finished;
      for (Running& one : running) {
        report.load_tokens += one.load;
        if (one.prompt > 0) continue;
        ++one.load;
        if (--one.output == 0) finished.push_back(one.spec.id);
      }
      largest = std::max(largest, report.load_tokens);
      std::erase_if(running, [](const Running& one) { return one.output == 0; });
      report.finished = finished;
      report.group_idle = barrier_ ? idle : running.empty();
      ASSERT_TRUE(cluster_.Apply(core::Report{0, static_cast<core::WorkerIndex>(g), report}).status.ok());
      if (!barrier_) Plan();
    }
    largest_loads += static_cast<double>(largest);
    recorder_.Flush();
  }
  int64_t switches() const { return cluster_.group(0)->chooser().switches(); }

  MemoryLog::Segments segments;
  // Plans with a level; the sum over all steps of the largest load.
  int64_t levels = 0;
  double largest_loads = 0;

 private:
  struct Worker {
    std::vector<Running> running;
    int64_t step = 0, applied = 0;
  };
  static core::SchedulerOptions Options() { return {.plan_mode = core::PlanMode::kLockstep}; }

  const bool barrier_;
  record::Recorder recorder_;
  core::Cluster cluster_;
  std::vector<Worker> workers_;
  std::map<core::RequestId, Running> requests_;
  core::RequestId last_ = 1 << 20;
};

// --- rules of placement ---

constexpr core::PlacementRule kRules[] = {core::PlacementRule::kCounts, core::PlacementRule::kHorizon,
                                          core::PlacementRule::kHeadroom};

// 30 of 72 slots of a barrier group are taken, by requests that are all `alike` or by agents' prompts. The
// group starts with one rule, and another one proves to be better for agents; with `rule` it follows that
// one.
struct Ruled {
  explicit Ruled(std::optional<core::PlacementRule> rule, bool alike = false, int64_t segment_bytes = 1 << 30)
      : group("bf_io_auto", core::GroupKind::kBarrier, segment_bytes, "survival") {
    constexpr int kWorkers = 8, kSteps = 2'500, kTokens = 40;
    group.Open(std::vector<core::WorkerSpec>(kWorkers, {72, 100'000'000, true}));
    Rng rng(3);
    for (int step = 1; step <= kSteps; ++step) {
      for (double left = std::exp(-30.0 * kWorkers / kTokens); (left /= rng.Uniform()) < 1;) {
        const int64_t tokens = alike ? 200 : static_cast<int64_t>(1 + std::exp(8.5 + 0.8 * rng.Normal()));
        group.Arrive({.prefill_tokens = tokens, .max_new_tokens = 1'000},
                     alike ? kTokens : 1 + static_cast<int64_t>(rng.Exponential() * kTokens));
      }
      group.Plan(rule);
      group.Step();
      if (::testing::Test::HasFailure()) return;
    }
  }
  DrivenGroup group;
};

// The segments as if `rule` had been followed; without one, the replay makes its own choices.
MemoryLog::Segments WithRule(MemoryLog::Segments segments, std::optional<core::PlacementRule> rule) {
  return Changed(std::move(segments), [&](record::LoggedEvent& logged) { logged.outcome.rule = rule; });
}

TEST(DrivenReplay, SwitchOfThePlacementRuleReplays) {
  const Ruled agents(std::nullopt);
  EXPECT_GE(agents.group.switches(), 1);
  ExpectExact(Replay(agents.group.segments));
  ExpectIdentical(Replay(WithRule(agents.group.segments, std::nullopt)));
  for (const core::PlacementRule rule : kRules) {
    const SessionReplay fixed = Replay(WithRule(agents.group.segments, rule));
    EXPECT_LT(fixed.counts().identical, fixed.counts().decisions) << "without the choice placements differ";
  }
}

// The recorded rule is used even if this program would choose another.
TEST(DrivenReplay, RecordedPlacementRuleIsObeyed) {
  const Ruled agents(core::PlacementRule::kCounts, false, 100'000);
  EXPECT_EQ(agents.group.switches(), 1);
  ASSERT_GT(agents.group.segments.size(), 3u);
  ExpectIdentical(Replay(agents.group.segments));
  const SessionReplay chooses = Replay(WithRule(agents.group.segments, std::nullopt));
  EXPECT_LT(chooses.counts().identical, chooses.counts().decisions);
}

// --- levels ---

// Coupled ranks that keep to levels: which ones do, and the level in force, are in the log.
TEST(DrivenReplay, MeteredRanksReplay) {
  DrivenGroup group("bf_io_auto", core::GroupKind::kCoupled, 4000);
  core::WorkerSpec spec = {16, 100'000, true};
  spec.cost = BatchCost{.c_s = 0.01, .a_s_per_token = 1e-4, .b0_tokens = 0};
  group.Open({spec, spec, spec});
  Rng rng(3);
  for (int step = 1; step <= 400; ++step) {
    if (rng.Below(3) == 0) {
      const auto tokens = static_cast<int64_t>(20 + rng.Below(400));
      group.Arrive({.prefill_tokens = tokens, .max_new_tokens = 100}, 1 + static_cast<int64_t>(rng.Below(60)),
                   tokens);
    }
    group.Plan();
    group.Step([&](size_t g, std::vector<DrivenGroup::Running>& running, core::StepReport& report) {
      report.prefill.emplace().token_budget = 256;
      // For some steps one of them does not.
      report.prefill->metered = g > 0 || step % 100 < 80;
      for (DrivenGroup::Running& one : running) {
        one.prompt = std::max<int64_t>(0, one.prompt - 40);
        if (one.prompt > 0) report.prefill->prompts.push_back({one.spec.id, one.prompt});
      }
    });
  }
  EXPECT_GT(group.levels, 20);
  ASSERT_GT(group.segments.size(), 1u);
  ExpectExact(Replay(group.segments));
}

// --- prefixes ---

// Ranks with prefix caches: the log contains blocks, members and cache hits. `burst`: up to so many requests
// arrive together every 20 turns, all with the same output; 0: one at a time.
MemoryLog::Segments RecordedPrefixes(uint64_t seed, const std::string& policy, int32_t slots,
                                     uint64_t burst) {
  DrivenGroup group(policy, core::GroupKind::kIndependent, 20'000);
  Rng rng(seed);
  const auto open = [&](const std::vector<uint64_t>& members) {
    std::vector<core::WorkerSpec> specs;
    for (const uint64_t member : members) {
      specs.push_back({.slots = slots,
                       .kv_tokens = 8 * slots * core::kPrefixBlockTokens,
                       .prefix_cache = true,
                       .member = member});
    }
    group.Open(specs);
  };
  open({1, 2, 3});
  for (int turn = 0; turn < 900; ++turn) {
    // The same ranks in another order, and one new rank.
    if (turn == 300) open({3, 1, 2});
    if (turn == 600) open({2, 4, 1});
    uint64_t arrivals = burst == 0 ? rng.Below(2) : turn % 20 == 0 ? rng.Below(burst) : 0;
    for (; arrivals > 0; --arrivals) {
      std::vector<uint64_t> blocks;
      for (uint64_t i = 0, name = 1 + rng.Below(8); i < 2 + rng.Below(4); ++i)
        blocks.push_back(name = 8 * name + (i < 2 ? 0 : rng.Below(3)));
      core::RequestSpec spec = {.max_new_tokens = 40};
      spec.prefill_tokens = static_cast<int64_t>(blocks.size()) * core::kPrefixBlockTokens + 5;
      spec.prefix = std::make_shared<const std::vector<uint64_t>>(std::move(blocks));
      group.Arrive(spec, burst > 0 ? 10 : 1 + static_cast<int64_t>(rng.Below(30)));
    }
    group.Plan();
    std::vector<core::CachedPrompt> cached;
    group.Step([&](size_t, std::vector<DrivenGroup::Running>& running, core::StepReport& report) {
      cached.clear();
      // Sometimes a rank finds fewer blocks than expected.
      for (DrivenGroup::Running& one : running) {
        if (!std::exchange(one.first, false)) continue;
        const auto blocks = static_cast<int64_t>(rng.Below(one.spec.prefix->size() + 1));
        cached.push_back({one.spec.id, blocks * core::kPrefixBlockTokens});
      }
      report.cached = cached;
    });
  }
  return group.segments;
}

TEST(DrivenReplay, PlacementsByPrefixRepeat) {
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    SCOPED_TRACE(seed);
    const MemoryLog::Segments segments = RecordedPrefixes(seed, "least_work", 4, 0);
    ASSERT_GT(segments.size(), 2u);
    const SessionReplay replay = Replay(segments);
    EXPECT_GT(replay.counts().decisions, 100);
    ExpectExact(replay);
    // Placements depend on the block names: without them they differ.
    const SessionReplay without = Replay(Changed(segments, [](record::LoggedEvent& logged) {
      if (auto* enqueue = std::get_if<core::Enqueue>(&logged.event)) enqueue->request.prefix = nullptr;
    }));
    EXPECT_LT(without.counts().identical, without.counts().decisions);
    if (HasFailure()) return;
  }
}

// Events while all slots are taken cause no decision and are not in the log. First-come waits cover a number
// of decisions if each admits many requests, and such events must not count.
TEST(DrivenReplay, EventsOfFullRanksChangeNoDecision) {
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    SCOPED_TRACE(seed);
    const SessionReplay replay = Replay(RecordedPrefixes(seed, "bf_io_auto", 12, 140));
    EXPECT_GT(replay.counts().decisions, 100);
    EXPECT_EQ(replay.counts().identical, replay.counts().decisions) << replay.counts().first_difference;
  }
}

// --- the rules against each other ---

// Identical requests are best placed by how long they stay, agents' prompts by keeping a worker low: the rule
// that is chosen keeps the largest load as low as the best of them would, and lower than another one.
TEST(DrivenReplay, TheChosenRuleSuitsTheTraffic) {
  for (const bool alike : {true, false}) {
    double best = HUGE_VAL, worst = 0;
    for (const core::PlacementRule rule : kRules) {
      const double loads = Ruled(rule, alike).group.largest_loads;
      best = std::min(best, loads);
      worst = std::max(worst, loads);
    }
    const double chosen = Ruled(std::nullopt, alike).group.largest_loads;
    EXPECT_LT(chosen, 1.005 * best);
    EXPECT_LT(chosen, (alike ? 0.97 : 0.99) * worst);
  }
}

}  // namespace
}  // namespace bfio::sim
