// For any recorded session the core repeats its decisions exactly, and a replay detects every difference.
#include "tools/sim/replay/session_replay.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/rng.h"
#include "nlohmann/json.hpp"
#include "tests/testing/cluster_session.h"
#include "tests/unit/router/core/scheduler/step_group.h"
#include "tests/unit/tools/sim/replay/replays.h"

namespace bfio::sim {
namespace {

using ::bfio::testing::RunRecorded;
using ::bfio::testing::SessionSetup;
using ::bfio::testing::StepGroup;
using ::testing::HasSubstr;

MemoryLog::Segments Record(const SessionSetup& setup, uint64_t seed, int turns,
                           int64_t segment_bytes = 1 << 30) {
  MemoryLog::Segments segments;
  RunRecorded(setup, seed, turns, std::make_unique<MemoryLog>(&segments, segment_bytes));
  return segments;
}

// Sessions of six seeds, in both plan modes, repeat.
void ExpectSessionsRepeat(SessionSetup setup, absl::string_view what, int64_t segment_bytes = 1 << 30) {
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    SCOPED_TRACE(absl::StrCat(what, ", seed ", seed));
    setup.plan_mode = seed % 2 == 0 ? core::PlanMode::kLockstep : core::PlanMode::kPipelined;
    ExpectIdentical(Replay(Record(setup, seed, 200, segment_bytes)));
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(SessionReplay, EveryPolicyRepeatsARecordedSession) {
  for (const core::PolicyInfo& policy : core::RegisteredPolicies()) {
    SessionSetup setup = {.policy = std::string(policy.name)};
    ExpectSessionsRepeat(setup, policy.name);
  }
}

TEST(SessionReplay, LookaheadsAndHintsAreRecordedToo) {
  for (const core::LookaheadInfo& lookahead : core::RegisteredLookaheads()) {
    SessionSetup setup = {.lookahead = std::string(lookahead.name)};
    setup.policy_options.horizon = 8;
    setup.policy_options.objective = "paper";
    for (const char* policy : {"bf_io", "br_h"}) {
      setup.policy = policy;
      ExpectSessionsRepeat(setup, lookahead.name);
    }
  }
}

TEST(SessionReplay, AdmissionIsRecordedToo) {
  for (const char* admission : {"kv_feasible", "mc_sf:most=7", "protection:alpha=0.1",
                                "wait:tokens=100,most=6", "kv_feasible+nested_wait:tokens=100,most=6"}) {
    SessionSetup setup = {.lookahead = "max_tokens", .admission = admission};
    ExpectSessionsRepeat(setup, admission, 4000);
  }
}

// Workers without a barrier have steps and plans of their own.
TEST(SessionReplay, SessionsWithoutTheRoutersBarrierReplay) {
  for (const char* policy : {"jffc", "bf_io_auto"}) {
    for (uint64_t seed = 1; seed <= 6; ++seed) {
      SCOPED_TRACE(absl::StrCat(policy, ", seed ", seed));
      SessionSetup setup = {.policy = policy,
                            .lookahead = seed % 2 == 0 ? "max_tokens" : "none",
                            .kind = seed % 3 == 0 ? core::GroupKind::kCoupled : core::GroupKind::kIndependent,
                            .admission = seed % 2 == 0 ? "kv_feasible" : "none"};
      const MemoryLog::Segments segments = Record(setup, seed, 300, 1000);
      ASSERT_GT(segments.size(), 1u);
      ExpectExact(Replay(segments));
      if (HasFailure()) return;
    }
  }
}

// Groups of both kinds that form, lose workers and are removed.
TEST(SessionReplay, SessionsOfSeveralGroupsReplay) {
  for (const char* policy : {"bf_io_auto", "fcfs", "power_of_two"}) {
    for (uint64_t seed = 1; seed <= 8; ++seed) {
      SCOPED_TRACE(absl::StrCat(policy, ", seed ", seed));
      MemoryLog::Segments segments;
      core::SchedulerOptions options = {
          .max_waiting = 30,
          .plan_mode = seed % 2 == 0 ? core::PlanMode::kLockstep : core::PlanMode::kPipelined};
      const core::PolicySetting setting = {policy, {}};
      {
        record::Recorder recorder(std::make_unique<MemoryLog>(&segments, 1000),
                                  {"test", core::RequestId{1'800'000'000} << 20}, options, setting, "none");
        core::Cluster cluster(options, setting, {}, nullptr, &recorder);
        bfio::testing::ClusterSession session(
            &cluster, {.seed = seed, .most_groups = 1 + seed % 4, .models = static_cast<uint32_t>(seed % 3)});
        for (int turn = 0; turn < 200; ++turn) {
          session.Iterate();
          recorder.Flush();
        }
        session.Run(0);
      }
      ASSERT_GT(segments.size(), 3u);
      const SessionReplay replay = Replay(segments);
      ExpectExact(replay);
      EXPECT_GT(replay.counts().groups, seed % 4 == 0 ? 0 : 1);
      if (HasFailure()) return;
    }
  }
}

TEST(SessionReplay, PoliciesMayChangeDuringASession) {
  SessionSetup setup = {.others = {"power_of_two", "round_robin", "bf_io_auto", "vllm"}};
  for (uint64_t seed = 1; seed <= 10; ++seed) ExpectIdentical(Replay(Record(setup, seed, 300)));
}

TEST(SessionReplay, SegmentsAreCutsOfOneSession) {
  const MemoryLog::Segments segments = Record({}, 3, 300, 4000);
  ASSERT_GT(segments.size(), 3u);
  ExpectIdentical(Replay(segments));
  EXPECT_THAT(SessionReplay(std::nullopt, NoClock).Take(segments[1][0]).message(),
              HasSubstr("the session's first segment is missing"));
  SessionReplay replay = Replay({segments[0]});
  EXPECT_THAT(replay.Take(segments[2][0]).message(), HasSubstr("does not follow the one before"));
}

// The `nth` event of this kind; decisions without placements do not count.
template <class Event>
record::LoggedEvent& Nth(MemoryLog::Segments& segments, int nth) {
  for (std::vector<record::Record>& segment : segments) {
    for (record::Record& record : segment) {
      auto* const logged = std::get_if<record::LoggedEvent>(&record);
      if (logged == nullptr || !std::holds_alternative<Event>(logged->event)) continue;
      const bool empty = std::is_same_v<Event, core::MakePlan> &&
                         (!logged->outcome.plan || logged->outcome.plan->placements.empty());
      if (!empty && nth-- == 0) return *logged;
    }
  }
  ADD_FAILURE() << "no such event";
  return std::get<record::LoggedEvent>(segments[0][1]);
}

TEST(SessionReplay, AChangedDecisionIsReportedAndTheReplayContinues) {
  MemoryLog::Segments segments = Record({}, 1, 200);
  ++Nth<core::MakePlan>(segments, 20).outcome.plan->placements[0].wait_steps;
  const SessionReplay replay = Replay(segments);
  EXPECT_TRUE(replay.Failed());
  EXPECT_EQ(replay.counts().identical, replay.counts().decisions);
  EXPECT_EQ(replay.counts().answers_identical, replay.counts().answers - 1);
  EXPECT_THAT(replay.counts().first_difference, HasSubstr("make_plan (record "));
  EXPECT_THAT(replay.counts().first_difference, HasSubstr("expected {\"plan\":{\"apply_step\":"));
}

TEST(SessionReplay, AnotherPolicysDecisionsAreDetected) {
  MemoryLog::Segments segments = Record({}, 1, 200);
  std::get<record::LogHeader>(segments[0][0]).policy.name = "lpt";
  const SessionReplay replay = Replay(segments);
  EXPECT_TRUE(replay.Failed());
  EXPECT_LT(replay.counts().identical, replay.counts().decisions);
  // The recorded decisions were followed nevertheless: the accounts agree to the end.
  EXPECT_EQ(replay.counts().answers_identical, replay.counts().answers);
  EXPECT_THAT(replay.counts().first_difference, HasSubstr("decision (record "));
}

TEST(SessionReplay, DecisionsCutShortByTheClockAreNotErrors) {
  SessionSetup setup = {.policy = "bf_io"};
  // The time for every decision is over at once.
  setup.policy_options.stop = [] { return true; };
  const SessionReplay replay = Replay(Record(setup, 1, 300));
  EXPECT_FALSE(replay.Failed()) << replay.counts().first_difference;
  EXPECT_EQ(replay.counts().identical + replay.counts().cut_short, replay.counts().decisions);
  EXPECT_EQ(replay.exact(), replay.counts().cut_short == 0);
}

TEST(SessionReplay, AChangedAnswerIsReported) {
  MemoryLog::Segments segments = Record({}, 1, 200);
  Nth<core::Enqueue>(segments, 4).outcome.status = absl::ResourceExhaustedError("");
  const SessionReplay replay = Replay(segments);
  EXPECT_TRUE(replay.Failed());
  EXPECT_THAT(replay.counts().first_difference, HasSubstr("expected {\"status\":8}; got {}"));
}

TEST(SessionReplay, WhatIfRunsAnotherPolicyOnTheRecordedSnapshots) {
  SessionSetup setup = {.policy = "fcfs"};
  const MemoryLog::Segments segments = Record(setup, 1, 1000);
  const SessionReplay same = Replay(segments, core::PolicySetting{"fcfs", {}});
  EXPECT_GT(same.counts().asked, 0);
  EXPECT_EQ(same.counts().otherwise, 0);
  EXPECT_EQ(same.counts().other_idle_tokens, same.counts().recorded_idle_tokens);
  const SessionReplay other = Replay(segments, core::PolicySetting{"bf_io", {}});
  EXPECT_FALSE(other.Failed());
  EXPECT_GT(other.counts().otherwise, 0);
  EXPECT_LT(other.counts().otherwise, other.counts().asked);
  EXPECT_LT(other.counts().other_idle_tokens, other.counts().recorded_idle_tokens);
}

TEST(SessionReplay, RecordsThatDoNotFitTheSessionAreRefused) {
  EXPECT_THAT(
      SessionReplay(std::nullopt, NoClock).Take(record::LoggedEvent{.event = core::MakePlan{}}).message(),
      HasSubstr("an event precedes the header"));
  SessionReplay replay = Replay(Record({}, 1, 3));
  EXPECT_EQ(replay.Take(record::LoggedEvent{.event = core::SetPolicy{{"nobody", {}}}}).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(replay.Take(record::LogHeader{.session = 7}).message(),
              HasSubstr("does not follow the one before"));
}

TEST(SessionReplay, TheReportHasTheCounts) {
  const SessionReplay replay = Replay(Record({}, 1, 200));
  const ReplayedLog log = {"x", 1, 0, 1000, "closed", ""};
  const nlohmann::ordered_json json = ReplayJson(log, replay);
  EXPECT_EQ(json["ok"], true);
  EXPECT_EQ(json["decisions"], json["identical"]);
  EXPECT_GT(json["steps"], 10);
}

// --- groups with traffic of their own ---

// Replays of groups with traffic of their own: rules of placement that change, ranks that keep to levels, and
// ranks with prefix caches. A replay places every request where the router did.

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
