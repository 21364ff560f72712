// For any recorded session the core repeats its decisions exactly, and a replay detects every difference.
#include "tools/sim/replay/session_replay.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/rng.h"
#include "nlohmann/json.hpp"
#include "tests/testing/recorded_session.h"
#include "tests/unit/router/core/scheduler/step_group.h"

namespace bfio::sim {
namespace {

using ::bfio::testing::MemoryLog;
using ::bfio::testing::RunRecorded;
using ::bfio::testing::SessionSetup;
using ::bfio::testing::StepGroup;
using ::testing::HasSubstr;

double NoClock() {
  return 0;
}

SessionReplay Replay(const MemoryLog::Segments& segments,
                     std::optional<core::PolicySetting> instead = std::nullopt) {
  SessionReplay replay(std::move(instead), NoClock);
  for (const std::vector<record::Record>& segment : segments) {
    for (const record::Record& record : segment) {
      const absl::Status status = replay.Take(record);
      EXPECT_TRUE(status.ok()) << status;
      if (!status.ok()) return replay;
    }
  }
  return replay;
}

void ExpectIdentical(const SessionReplay& replay) {
  EXPECT_FALSE(replay.Failed());
  EXPECT_EQ(replay.counts().identical, replay.counts().decisions) << replay.counts().first_difference;
  EXPECT_EQ(replay.counts().answers_identical, replay.counts().answers);
  EXPECT_EQ(replay.counts().first_difference, "");
  EXPECT_GT(replay.counts().decisions, 0);
}
void ExpectExact(const SessionReplay& replay) {
  ExpectIdentical(replay);
  EXPECT_TRUE(replay.exact());
}

// The segments with `change` applied to every event.
template <class Change>
MemoryLog::Segments Changed(MemoryLog::Segments segments, const Change& change) {
  for (auto& segment : segments) {
    for (record::Record& record : segment)
      if (auto* logged = std::get_if<record::LoggedEvent>(&record)) change(*logged);
  }
  return segments;
}

constexpr core::GroupKind kKinds[] = {core::GroupKind::kBarrier, core::GroupKind::kIndependent,
                                      core::GroupKind::kCoupled};

MemoryLog::Segments Record(const SessionSetup& setup, uint64_t seed, int turns,
                           int64_t segment_bytes = 1 << 30) {
  MemoryLog::Segments segments;
  RunRecorded(setup, seed, turns, std::make_unique<MemoryLog>(&segments, segment_bytes));
  return segments;
}

// Each policy with each admission and kind of group; what else a session has is drawn: groups of all kinds,
// models, changes of the policy.
TEST(SessionReplay, AnySessionRepeats) {
  const auto& lookaheads = core::RegisteredLookaheads();
  int64_t levels = 0, several = 0;
  uint64_t seed = 0;
  for (const core::PolicyInfo& policy : core::RegisteredPolicies()) {
    for (const char* admission : {"none", "kv_feasible", "mc_sf:most=7", "protection:alpha=0.1",
                                  "wait:tokens=100,most=6", "kv_feasible+nested_wait:tokens=100,most=6"}) {
      for (const core::GroupKind kind : kKinds) {
        // Batches begin in a common step.
        if (absl::StrContains(admission, "wait") && kind != core::GroupKind::kBarrier) continue;
        Rng rng(++seed);
        const auto one_in = [&](uint64_t n) { return rng.Below(n) == 0; };
        SessionSetup setup = {.policy = std::string(policy.name), .kinds = {kind}, .admission = admission};
        // The first one does not predict.
        const size_t predicts =
            absl::StrContains(admission, "kv_feasible") || setup.admission[0] == 'm' ? 1 : 0;
        setup.lookahead = std::string(lookaheads[predicts + rng.Below(lookaheads.size() - predicts)].name);
        setup.plan_mode = one_in(2) ? core::PlanMode::kLockstep : core::PlanMode::kPipelined;
        if (!one_in(3)) setup.policy_options = {.horizon = 8, .objective = "paper"};
        if (kind != core::GroupKind::kBarrier && one_in(3)) {
          setup.kinds.assign(std::begin(kKinds), std::end(kKinds));
          setup.groups = 1 + rng.Below(4);
          setup.models = static_cast<uint32_t>(rng.Below(3));
        }
        if (one_in(6)) setup.others = {"power_of_two", "round_robin", "bf_io_auto", "vllm"};
        SCOPED_TRACE(absl::StrCat(policy.name, ", ", setup.lookahead, ", ", admission, ", seed ", seed));
        const MemoryLog::Segments segments = Record(setup, seed, 200, 4000);
        ASSERT_GT(segments.size(), 1u);
        const SessionReplay replay = Replay(segments);
        ExpectExact(replay);
        several += replay.counts().groups > 1 ? 1 : 0;
        Changed(segments, [&](const record::LoggedEvent& logged) {
          levels += logged.outcome.plan && logged.outcome.plan->level_s ? 1 : 0;
        });
        if (HasFailure()) return;
      }
    }
  }
  EXPECT_GT(levels, 200);
  EXPECT_GT(several, 10);
}

TEST(SessionReplay, PlacementsDependOnPrefixesOnWhatRanksFoundOfThemAndOnHints) {
  const auto depend = [](const SessionSetup& setup, const auto& change) {
    const MemoryLog::Segments segments = Record(setup, 1, 2'000);
    ExpectExact(Replay(segments));
    const SessionReplay without = Replay(Changed(segments, change));
    EXPECT_LT(without.counts().identical, without.counts().decisions);
  };
  const SessionSetup by_prefix = {.policy = "least_work", .kinds = {core::GroupKind::kIndependent}};
  depend(by_prefix, [](record::LoggedEvent& logged) {
    if (auto* enqueue = std::get_if<core::Enqueue>(&logged.event)) enqueue->request.prefix = nullptr;
  });
  depend(by_prefix, [](record::LoggedEvent& logged) {
    if (auto* report = std::get_if<core::Report>(&logged.event)) report->report.cached = {};
  });
  depend({.policy = "bf_io", .lookahead = "hint", .policy_options = {.horizon = 8, .objective = "paper"}},
         [](record::LoggedEvent& logged) {
           if (auto* report = std::get_if<core::Report>(&logged.event)) report->report.hints = {};
         });
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

struct RecordedLog {
  explicit RecordedLog(int64_t segment_bytes)
      : recorder(std::make_unique<MemoryLog>(&segments, segment_bytes), {"test", kFirstId}, kLockstep,
                 {"bf_io_auto", {}}, "survival") {}
  static constexpr core::RequestId kFirstId = 1 << 20;
  static constexpr core::SchedulerOptions kLockstep = {.plan_mode = core::PlanMode::kLockstep};

  MemoryLog::Segments segments;
  record::Recorder recorder;
};

class RecordedGroup : public RecordedLog, public StepGroup {
 public:
  explicit RecordedGroup(core::GroupKind kind, int64_t segment_bytes = 1 << 30)
      : RecordedLog(segment_bytes),
        StepGroup({}, *core::MakePolicy("bf_io_auto", {}), kLockstep, *core::MakeLookahead("survival"), kind,
                  &recorder) {}
  void Arrive(int64_t tokens, int64_t output) {
    Enqueue({.id = ++last_id_, .prefill_tokens = tokens, .max_new_tokens = 1'000}, output);
  }

 private:
  core::RequestId last_id_ = kFirstId;
};

// Events while all slots are taken cause no decision and are not in the log. First-come waits cover a number
// of decisions if each admits many requests, and such events must not count.
TEST(RecordedGroupTest, EventsOfFullRanksChangeNoDecision) {
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    SCOPED_TRACE(seed);
    RecordedGroup group(core::GroupKind::kIndependent);
    group.Open(std::vector<core::WorkerSpec>(3, {12, 100'000'000, true}));
    Rng rng(seed);
    for (int turn = 0; turn < 900; ++turn) {
      for (uint64_t n = turn % 20 == 0 ? rng.Below(140) : 0; n > 0; --n)
        group.Arrive(1 + static_cast<int64_t>(rng.Below(400)), 10);
      group.Step();
      group.recorder.Flush();
    }
    const SessionReplay replay = Replay(group.segments);
    EXPECT_GT(replay.counts().decisions, 100);
    ExpectIdentical(replay);
  }
}

// --- rules of placement ---

constexpr core::PlacementRule kRules[] = {core::PlacementRule::kCounts, core::PlacementRule::kHorizon,
                                          core::PlacementRule::kHeadroom};

// 30 of 72 slots of a barrier group are taken, by requests that are all `alike` or by agents' prompts. The
// group starts with one rule, and another one proves to be better for agents; with a rule it follows that
// one.
class Ruled : public RecordedGroup {
 public:
  explicit Ruled(std::optional<core::PlacementRule> of, bool alike = false, int64_t segment_bytes = 1 << 30)
      : RecordedGroup(core::GroupKind::kBarrier, segment_bytes) {
    constexpr int kWorkers = 8, kSteps = 2'500, kTokens = 40;
    rule = of;
    Open(std::vector<core::WorkerSpec>(kWorkers, {72, 100'000'000, true}));
    Rng rng(3);
    for (int step = 1; step <= kSteps; ++step) {
      for (double left = std::exp(-30.0 * kWorkers / kTokens); (left /= rng.Uniform()) < 1;) {
        const int64_t tokens = alike ? 200 : static_cast<int64_t>(1 + std::exp(8.5 + 0.8 * rng.Normal()));
        Arrive(tokens, alike ? kTokens : 1 + static_cast<int64_t>(rng.Exponential() * kTokens));
      }
      largest_ = 0;
      Step();
      largest_loads += static_cast<double>(largest_);
      recorder.Flush();
      if (::testing::Test::HasFailure()) return;
    }
  }
  // The sum over all steps of the largest load.
  double largest_loads = 0;

 protected:
  void OnReported(size_t, const Done& done) override {
    largest_ = std::max(largest_, done.report.load_tokens);
  }

 private:
  int64_t largest_ = 0;
};

// The segments as if `rule` had been followed; without one, the replay makes its own choices.
MemoryLog::Segments WithRule(MemoryLog::Segments segments, std::optional<core::PlacementRule> rule) {
  return Changed(std::move(segments), [&](record::LoggedEvent& logged) { logged.outcome.rule = rule; });
}

TEST(RuledReplay, SwitchOfThePlacementRuleReplays) {
  const Ruled agents(std::nullopt);
  EXPECT_GE(agents.group.group().chooser().switches(), 1);
  ExpectExact(Replay(agents.segments));
  ExpectIdentical(Replay(WithRule(agents.segments, std::nullopt)));
  for (const core::PlacementRule rule : kRules) {
    const SessionReplay fixed = Replay(WithRule(agents.segments, rule));
    EXPECT_LT(fixed.counts().identical, fixed.counts().decisions) << "without the choice placements differ";
  }
}

// The recorded rule is used even if this program would choose another.
TEST(RuledReplay, RecordedPlacementRuleIsObeyed) {
  const Ruled agents(core::PlacementRule::kCounts, false, 100'000);
  EXPECT_EQ(agents.group.group().chooser().switches(), 1);
  ASSERT_GT(agents.segments.size(), 3u);
  ExpectIdentical(Replay(agents.segments));
  const SessionReplay chooses = Replay(WithRule(agents.segments, std::nullopt));
  EXPECT_LT(chooses.counts().identical, chooses.counts().decisions);
}

// Identical requests are best placed by how long they stay, agents' prompts by keeping a worker low: the rule
// that is chosen keeps the largest load as low as the best of them would, and lower than another one.
TEST(RuledReplay, TheChosenRuleSuitsTheTraffic) {
  for (const bool alike : {true, false}) {
    double best = HUGE_VAL, worst = 0;
    for (const core::PlacementRule rule : kRules) {
      const double loads = Ruled(rule, alike).largest_loads;
      best = std::min(best, loads);
      worst = std::max(worst, loads);
    }
    const double chosen = Ruled(std::nullopt, alike).largest_loads;
    EXPECT_LT(chosen, 1.005 * best);
    EXPECT_LT(chosen, (alike ? 0.97 : 0.99) * worst);
  }
}

}  // namespace
}  // namespace bfio::sim
