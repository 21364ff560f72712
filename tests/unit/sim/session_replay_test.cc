// Whatever a session was like, the core decides it again as it did, and a replay notices when it does not.
#include "tools/sim/replay/session_replay.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "tests/testing/cluster_session.h"
#include "tests/testing/recorded_session.h"
#include "tools/sim/replay/replay_report.h"

namespace bfio::sim {
namespace {

using ::bfio::testing::MemoryLog;
using ::bfio::testing::RunRecorded;
using ::bfio::testing::SessionSetup;
using ::testing::HasSubstr;

double NoClock() {
  return 0;
}

MemoryLog::Segments Record(const SessionSetup& setup, uint64_t seed, int turns,
                           int64_t segment_bytes = 1 << 30) {
  MemoryLog::Segments segments;
  RunRecorded(setup, seed, turns, std::make_unique<MemoryLog>(&segments, segment_bytes));
  return segments;
}

// Replays from segment `first` on.
SessionReplay Replay(const MemoryLog::Segments& segments, size_t first = 0,
                     std::optional<core::PolicySetting> instead = std::nullopt) {
  SessionReplay replay(std::move(instead), NoClock);
  for (size_t i = first; i < segments.size(); ++i) {
    for (const v1::DecisionRecord& record : segments[i]) {
      const absl::Status status = replay.Take(record);
      EXPECT_TRUE(status.ok()) << status;
      if (!status.ok()) return replay;
    }
  }
  return replay;
}

void ExpectIdentical(const SessionReplay& replay) {
  EXPECT_FALSE(replay.Failed());
  EXPECT_EQ(replay.counts().identical, replay.counts().decisions);
  EXPECT_EQ(replay.counts().answers_identical, replay.counts().answers);
  EXPECT_EQ(replay.counts().first_difference, "");
  EXPECT_GT(replay.counts().decisions, 0);
}

TEST(SessionReplay, EveryPolicyDecidesARecordedSessionAgainAsItDid) {
  for (const core::PolicyInfo& policy : core::RegisteredPolicies()) {
    for (uint64_t seed = 1; seed <= 6; ++seed) {
      SCOPED_TRACE(absl::StrCat(policy.name, ", seed ", seed));
      SessionSetup setup;
      setup.policy = std::string(policy.name);
      setup.plan_mode = seed % 2 == 0 ? core::PlanMode::kLockstep : core::PlanMode::kPipelined;
      ExpectIdentical(Replay(Record(setup, seed, 200)));
      if (HasFailure()) return;
    }
  }
}

TEST(SessionReplay, LookaheadsAndHintsAreRecordedToo) {
  for (const core::LookaheadInfo& lookahead : core::RegisteredLookaheads()) {
    for (uint64_t seed = 1; seed <= 6; ++seed) {
      SCOPED_TRACE(absl::StrCat(lookahead.name, ", seed ", seed));
      SessionSetup setup;
      setup.policy = seed % 2 == 0 ? "bf_io" : "br_h";
      setup.lookahead = std::string(lookahead.name);
      setup.policy_options.horizon = 8;
      setup.policy_options.objective = "refill";
      ExpectIdentical(Replay(Record(setup, seed, 200)));
      if (HasFailure()) return;
    }
  }
}

TEST(SessionReplay, AdmissionIsRecordedToo) {
  for (const char* admission : {"kv_feasible", "protection:alpha=0.1", "wait:tokens=100,most=6",
                                "kv_feasible+nested_wait:tokens=100,most=6"}) {
    for (uint64_t seed = 1; seed <= 6; ++seed) {
      SCOPED_TRACE(absl::StrCat(admission, ", seed ", seed));
      SessionSetup setup;
      setup.admission = admission;
      setup.lookahead = "max_tokens";
      setup.plan_mode = seed % 2 == 0 ? core::PlanMode::kLockstep : core::PlanMode::kPipelined;
      // In pieces: who is kept back is in the states between them.
      ExpectIdentical(Replay(Record(setup, seed, 200, 4000)));
      if (HasFailure()) return;
    }
  }
}

// Workers that share no barrier have steps of their own, and plans for them.
TEST(SessionReplay, SessionsOfIndependentWorkersToo) {
  for (const char* policy : {"jffc", "sa_jsq", "bf_io_auto"}) {
    for (uint64_t seed = 1; seed <= 6; ++seed) {
      SCOPED_TRACE(absl::StrCat(policy, ", seed ", seed));
      SessionSetup setup;
      setup.policy = policy;
      setup.kind = core::GroupKind::kIndependent;
      setup.admission = seed % 2 == 0 ? "kv_feasible" : "none";
      setup.lookahead = seed % 2 == 0 ? "max_tokens" : "none";
      const MemoryLog::Segments segments = Record(setup, seed, 300, 1000);
      ASSERT_GT(segments.size(), 1u);
      const SessionReplay replay = Replay(segments);
      ExpectIdentical(replay);
      EXPECT_TRUE(replay.exact());
      if (HasFailure()) return;
    }
  }
}

// Groups of both kinds that come, lose workers and go.
TEST(SessionReplay, SessionsOfSeveralGroupsToo) {
  for (const char* policy : {"bf_io_auto", "fcfs", "power_of_two"}) {
    for (uint64_t seed = 1; seed <= 8; ++seed) {
      SCOPED_TRACE(absl::StrCat(policy, ", seed ", seed));
      MemoryLog::Segments segments;
      core::SchedulerOptions options;
      options.plan_mode = seed % 2 == 0 ? core::PlanMode::kLockstep : core::PlanMode::kPipelined;
      options.max_waiting = 30;
      const core::PolicySetting setting = {policy, {}};
      {
        record::Recorder recorder(std::make_unique<MemoryLog>(&segments, 1000),
                                  {"test", core::RequestId{1'800'000'000} << 20}, options, setting, "none");
        core::Cluster cluster(options, setting, {}, nullptr, &recorder);
        bfio::testing::ClusterSession session(
            &cluster, {.seed = seed, .most_groups = 1 + seed % 4, .models = static_cast<uint32_t>(seed % 3)});
        session.after_turn = [&] { recorder.Flush(); };
        session.Run(200);
      }
      ASSERT_GT(segments.size(), 3u);
      const SessionReplay replay = Replay(segments);
      ExpectIdentical(replay);
      EXPECT_TRUE(replay.exact());
      EXPECT_GT(replay.counts().groups, seed % 4 == 0 ? 0 : 1);
      // From any segment on the accounts agree, whatever policies have forgotten.
      const SessionReplay later = Replay(segments, segments.size() / 2);
      EXPECT_FALSE(later.Failed()) << later.counts().first_difference;
      EXPECT_EQ(later.counts().answers_identical, later.counts().answers);
      if (HasFailure()) return;
    }
  }
}

TEST(SessionReplay, PoliciesMayChangeOnTheWay) {
  SessionSetup setup;
  setup.others = {"power_of_two", "round_robin", "bf_io_auto", "vllm"};
  for (uint64_t seed = 1; seed <= 10; ++seed) ExpectIdentical(Replay(Record(setup, seed, 300)));
}

TEST(SessionReplay, StatesBetweenSegmentsAreWhatTheReplayArrivesAt) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    const MemoryLog::Segments segments = Record({}, seed, 300, 4000);
    ASSERT_GT(segments.size(), 3u);
    const SessionReplay replay = Replay(segments);
    ExpectIdentical(replay);
    EXPECT_TRUE(replay.exact());
  }
}

TEST(SessionReplay, AnySegmentIsABeginningForPoliciesWithoutMemory) {
  for (const char* policy : {"fcfs", "lpt", "least_tokens", "bf_io"}) {
    SessionSetup setup;
    setup.policy = policy;
    const MemoryLog::Segments segments = Record(setup, 3, 300, 4000);
    ASSERT_GT(segments.size(), 3u);
    for (size_t first = 1; first < segments.size(); ++first) {
      const SessionReplay replay = Replay(segments, first);
      EXPECT_FALSE(replay.from_beginning());
      EXPECT_FALSE(replay.Failed()) << replay.counts().first_difference;
      EXPECT_EQ(replay.counts().identical, replay.counts().decisions) << policy;
    }
  }
}

TEST(SessionReplay, APolicyWithoutItsMemoryIsNoFault) {
  SessionSetup setup;
  setup.policy = "power_of_two";  // draws on for ever
  const MemoryLog::Segments segments = Record(setup, 3, 300, 4000);
  const SessionReplay replay = Replay(segments, 2);
  EXPECT_FALSE(replay.Failed());
  EXPECT_FALSE(replay.exact());
  EXPECT_LT(replay.counts().identical, replay.counts().decisions);
  EXPECT_GT(replay.counts().last_difference, 0);
  EXPECT_EQ(replay.counts().answers_identical, replay.counts().answers);
}

// The `nth` record of the kind.
v1::DecisionRecord& Nth(MemoryLog::Segments& segments, v1::DecisionRecord::WhatCase kind, int nth) {
  for (std::vector<v1::DecisionRecord>& segment : segments) {
    for (v1::DecisionRecord& record : segment) {
      const bool empty_plan = record.has_plan() && record.plan().workers_size() == 0;
      if (record.what_case() == kind && !empty_plan && nth-- == 0) return record;
    }
  }
  ADD_FAILURE() << "no such record";
  return segments[0][0];
}

TEST(SessionReplay, AChangedDecisionIsFoundNamedAndDoesNotHideTheRest) {
  MemoryLog::Segments segments = Record({}, 1, 200);
  v1::LoggedPlan& plan = *Nth(segments, v1::DecisionRecord::kPlan, 20).mutable_plan();
  plan.mutable_wait_steps()->Set(0, plan.wait_steps(0) + 1);
  const SessionReplay replay = Replay(segments);
  EXPECT_TRUE(replay.Failed());
  EXPECT_EQ(replay.counts().identical, replay.counts().decisions);
  EXPECT_EQ(replay.counts().answers_identical, replay.counts().answers - 1);
  EXPECT_THAT(replay.counts().first_difference, HasSubstr("plan (record "));
  EXPECT_THAT(replay.counts().first_difference, HasSubstr("expected step "));
}

TEST(SessionReplay, AnotherPolicysDecisionsDoNotPassAsTheRecordedOnes) {
  MemoryLog::Segments segments = Record({}, 1, 200);
  segments[0][0].mutable_header()->mutable_policy()->set_name("max_min");
  const SessionReplay replay = Replay(segments);
  EXPECT_TRUE(replay.Failed());
  EXPECT_LT(replay.counts().identical, replay.counts().decisions);
  // It was followed all the same: the accounts agree to the end.
  EXPECT_EQ(replay.counts().answers_identical, replay.counts().answers);
  EXPECT_THAT(replay.counts().first_difference, HasSubstr("decision (record "));
}

TEST(SessionReplay, WhatAClockHasDecidedIsNoFault) {
  SessionSetup setup;
  setup.policy = "bf_io";
  // Time is up at once.
  setup.policy_options.stop = [] { return true; };
  const SessionReplay replay = Replay(Record(setup, 1, 300));
  EXPECT_FALSE(replay.Failed()) << replay.counts().first_difference;
  EXPECT_EQ(replay.counts().identical + replay.counts().cut_short, replay.counts().decisions);
  EXPECT_EQ(replay.exact(), replay.counts().cut_short == 0);
}

TEST(SessionReplay, AChangedAnswerIsFound) {
  MemoryLog::Segments segments = Record({}, 1, 200);
  Nth(segments, v1::DecisionRecord::kEnqueue, 5).mutable_enqueue()->set_status(8);
  const SessionReplay replay = Replay(segments);
  EXPECT_TRUE(replay.Failed());
  EXPECT_THAT(replay.counts().first_difference, HasSubstr("expected RESOURCE_EXHAUSTED; got OK"));
}

TEST(SessionReplay, WhatIfAsksAnotherPolicyOnTheRecordedSnapshots) {
  SessionSetup setup;
  setup.policy = "fcfs";
  const MemoryLog::Segments segments = Record(setup, 1, 300);
  const SessionReplay same = Replay(segments, 0, core::PolicySetting{"fcfs", {}});
  EXPECT_GT(same.counts().asked, 0);
  EXPECT_EQ(same.counts().otherwise, 0);
  EXPECT_EQ(same.counts().other_idle_tokens, same.counts().recorded_idle_tokens);
  const SessionReplay other = Replay(segments, 0, core::PolicySetting{"bf_io", {}});
  EXPECT_FALSE(other.Failed());
  EXPECT_GT(other.counts().otherwise, 0);
  EXPECT_LT(other.counts().otherwise, other.counts().asked);
  EXPECT_LT(other.counts().other_idle_tokens, other.counts().recorded_idle_tokens);
}

TEST(SessionReplay, ImpossibleRecordsAreRefusedByName) {
  const auto take = [](const v1::DecisionRecord& record) {
    MemoryLog::Segments segments = Record({}, 1, 3);
    SessionReplay replay = Replay(segments);
    return replay.Take(record);
  };
  v1::DecisionRecord record;
  record.mutable_enqueue()->mutable_request()->set_prefill_tokens(0);
  EXPECT_THAT(take(record).message(), HasSubstr("prefill_tokens 0 is outside 1.."));
  record.mutable_open_epoch()->add_members()->mutable_worker()->set_slots(-1);
  EXPECT_THAT(take(record).message(), HasSubstr("slots -1 is outside 1.."));
  record.mutable_plan()->add_placed(1);
  EXPECT_THAT(take(record).message(), HasSubstr("placed, workers: 1 and 0 entries"));
  record.mutable_set_policy()->set_name("nobody");
  EXPECT_EQ(take(record).code(), absl::StatusCode::kInvalidArgument);
  record.mutable_state()->set_last(true);
  EXPECT_THAT(take(record).message(), HasSubstr("a state that no header announces"));
  record.mutable_header()->set_session(7);
  EXPECT_THAT(take(record).message(), HasSubstr("a header of another session"));
}

TEST(SessionReplay, TheReportSaysWhatWasFound) {
  const SessionReplay replay = Replay(Record({}, 1, 200));
  const ReplayedLog log = {"x", 1, 0, 1000, "closed", ""};
  const nlohmann::ordered_json json = ReplayJson(log, replay);
  EXPECT_EQ(json["ok"], true);
  EXPECT_EQ(json["decisions"], json["identical"]);
  EXPECT_GT(json["steps"], 10);
  EXPECT_THAT(ReplayText(log, replay), HasSubstr("decisions identical"));
}

}  // namespace
}  // namespace bfio::sim
