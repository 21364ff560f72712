// For any recorded session the core repeats its decisions exactly, and a replay detects every difference.
#include "tools/sim/replay/session_replay.h"

#include <gmock/gmock.h>

#include <memory>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "tests/testing/cluster_session.h"
#include "tests/unit/tools/sim/replay/replays.h"

namespace bfio::sim {
namespace {

using ::bfio::testing::RunRecorded;
using ::bfio::testing::SessionSetup;
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

}  // namespace
}  // namespace bfio::sim
