// Replays of groups with traffic of their own: rules of placement that change, ranks that keep to levels, and
// ranks with prefix caches. A replay places every request where the router did.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/rng.h"
#include "tests/unit/router/core/scheduler/step_group.h"
#include "tests/unit/tools/sim/replay/replays.h"

namespace bfio::sim {
namespace {

using ::bfio::testing::StepGroup;

struct RecordedLog {
  RecordedLog(const std::string& policy, const std::string& lookahead, int64_t segment_bytes)
      : recorder(std::make_unique<MemoryLog>(&segments, segment_bytes), {"test", kFirstId}, kLockstep,
                 {policy, {}}, lookahead) {}
  static constexpr core::RequestId kFirstId = 1 << 20;
  static constexpr core::SchedulerOptions kLockstep = {.plan_mode = core::PlanMode::kLockstep};

  MemoryLog::Segments segments;
  record::Recorder recorder;
};

// A recorded group whose workers compute what the test says.
class DrivenGroup : public RecordedLog, public StepGroup {
 public:
  // What else a worker reports of a step, before it runs its requests.
  using Fill = std::function<void(size_t g, std::vector<Run>&, core::StepReport&)>;

  DrivenGroup(const std::string& policy, core::GroupKind kind, int64_t segment_bytes,
              const std::string& lookahead = "none")
      : RecordedLog(policy, lookahead, segment_bytes),
        StepGroup({}, *core::MakePolicy(policy, {}), kLockstep, *core::MakeLookahead(lookahead), kind,
                  &recorder) {}

  void Arrive(core::RequestSpec spec, int64_t output) {
    spec.id = ++last_id_;
    Enqueue(spec, output);
  }
  void Step(const Fill& fill = {}) {
    fill_ = fill;
    largest_ = 0;
    StepGroup::Step();
    largest_loads += static_cast<double>(largest_);
    recorder.Flush();
  }

  // Plans with a level; the sum over all steps of the largest load.
  int64_t levels = 0;
  double largest_loads = 0;

 protected:
  void OnPlan(const core::Plan& plan) override { levels += plan.level_s.has_value() ? 1 : 0; }
  void OnReported(size_t, const Done& done) override {
    largest_ = std::max(largest_, done.report.load_tokens);
  }
  void Compute(size_t g, Done& done) override {
    if (fill_) fill_(g, workers[g].runs, done.report);
    for (Run& run : workers[g].runs) {
      done.report.load_tokens += run.load;
      if (run.prompt_left > 0) continue;
      ++run.load;
      ++run.made;
    }
    TakeEnded(g, done);
  }

 private:
  Fill fill_;
  core::RequestId last_id_ = kFirstId;
  int64_t largest_ = 0;
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
    group.rule = rule;
    group.Open(std::vector<core::WorkerSpec>(kWorkers, {72, 100'000'000, true}));
    Rng rng(3);
    for (int step = 1; step <= kSteps; ++step) {
      for (double left = std::exp(-30.0 * kWorkers / kTokens); (left /= rng.Uniform()) < 1;) {
        const int64_t tokens = alike ? 200 : static_cast<int64_t>(1 + std::exp(8.5 + 0.8 * rng.Normal()));
        group.Arrive({.prefill_tokens = tokens, .max_new_tokens = 1'000},
                     alike ? kTokens : 1 + static_cast<int64_t>(rng.Exponential() * kTokens));
      }
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
  EXPECT_GE(agents.group.group.group().chooser().switches(), 1);
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
  EXPECT_EQ(agents.group.group.group().chooser().switches(), 1);
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
      group.Arrive({.prefill_tokens = tokens, .max_new_tokens = 100},
                   1 + static_cast<int64_t>(rng.Below(60)));
    }
    group.Step([&](size_t g, std::vector<DrivenGroup::Run>& runs, core::StepReport& report) {
      report.prefill.emplace().token_budget = 256;
      // For some steps one of them does not.
      report.prefill->metered = g > 0 || step % 100 < 80;
      for (DrivenGroup::Run& run : runs) {
        run.prompt_left = std::max<int64_t>(0, run.spec.prefill_tokens - 40 * ++run.age);
        if (run.prompt_left > 0) report.prefill->prompts.push_back({run.spec.id, run.prompt_left});
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
    group.Open({});
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
    std::vector<core::CachedPrompt> cached[3];
    group.Step([&](size_t g, std::vector<DrivenGroup::Run>& runs, core::StepReport& report) {
      // Sometimes a rank finds fewer blocks than expected.
      for (DrivenGroup::Run& run : runs) {
        if (run.age++ > 0) continue;
        const auto blocks = static_cast<int64_t>(rng.Below(run.spec.prefix->size() + 1));
        cached[g].push_back({run.spec.id, blocks * core::kPrefixBlockTokens});
      }
      report.cached = cached[g];
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
