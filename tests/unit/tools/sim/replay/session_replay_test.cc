// For any recorded session the core repeats its decisions exactly, and a replay detects every difference.
#include "tools/sim/replay/session_replay.h"

#include <gmock/gmock.h>

#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/rng.h"
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
  EXPECT_EQ(replay.counts().identical, replay.counts().decisions);
  EXPECT_EQ(replay.counts().answers_identical, replay.counts().answers);
  EXPECT_EQ(replay.counts().first_difference, "");
  EXPECT_GT(replay.counts().decisions, 0);
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

// A barrier group under bf_io_auto with agents' prompts: it starts with one rule of placement, and another
// one proves to be better. With `rule` it follows that one. Returns how often the rule has changed.
int64_t RecordAgents(MemoryLog::Segments& segments, std::optional<core::PlacementRule> rule = std::nullopt,
                     int64_t segment_bytes = 1 << 30) {
  constexpr int kWorkers = 8, kSteps = 2'500, kTokens = 40;
  const core::PolicySetting setting = {"bf_io_auto", {}};
  core::SchedulerOptions options = {.plan_mode = core::PlanMode::kLockstep};
  record::Recorder recorder(std::make_unique<MemoryLog>(&segments, segment_bytes), {"test", 1 << 20}, options,
                            setting, "survival");
  core::Cluster cluster(options, setting, {}, *core::MakeLookahead("survival"), &recorder);
  cluster.Apply(core::AddGroup{0, core::GroupKind::kBarrier});
  core::OpenEpoch epoch{0, std::vector<core::EpochMember>(kWorkers)};
  for (core::EpochMember& member : epoch.members) member.spec = {72, 100'000'000, true};
  cluster.Apply(epoch);
  Rng rng(3);
  struct Running {
    core::RequestId id;
    int64_t load, left;
  };
  std::vector<std::vector<Running>> running(kWorkers);
  std::map<core::RequestId, Running> waiting;
  core::RequestId last = 1 << 20;
  for (int64_t step = 1; step <= kSteps; ++step) {
    // 30 of 72 slots are taken.
    for (double left = std::exp(-30.0 * kWorkers / kTokens); (left /= rng.Uniform()) < 1;) {
      core::RequestSpec spec = {
          .id = ++last,
          .prefill_tokens = static_cast<int64_t>(1 + std::exp(8.5 + 0.8 * rng.Normal())),
          .max_new_tokens = 1'000};
      EXPECT_TRUE(cluster.Apply(core::Enqueue{spec}).status.ok());
      waiting[spec.id] = {spec.id, spec.prefill_tokens,
                          1 + static_cast<int64_t>(rng.Exponential() * kTokens)};
    }
    const auto plan = cluster.Apply(core::MakePlan{0, false, rule}).plan;
    if (!plan.has_value()) {
      ADD_FAILURE() << "no plan for step " << step;
      break;
    }
    for (const core::Placement& placement : plan->placements)
      running[static_cast<size_t>(placement.worker)].push_back(waiting.extract(placement.id).mapped());
    bool idle = true;
    for (const auto& worker : running) idle = idle && worker.empty();
    for (int g = 0; g < kWorkers; ++g) {
      core::StepReport report;
      report.step = report.applied_plan = plan->apply_step;
      std::vector<core::RequestId> finished;
      for (Running& one : running[g]) {
        report.load_tokens += one.load++;
        if (--one.left == 0) finished.push_back(one.id);
      }
      std::erase_if(running[g], [](const Running& one) { return one.left == 0; });
      report.finished = finished;
      report.group_idle = idle;
      EXPECT_TRUE(cluster.Apply(core::Report{0, g, report}).status.ok());
    }
    recorder.Flush();
  }
  return cluster.group(0)->chooser().switches();
}

// Without the rules, the replay makes its own choices.
MemoryLog::Segments WithoutRules(MemoryLog::Segments segments) {
  for (auto& segment : segments) {
    for (record::Record& record : segment) {
      if (auto* logged = std::get_if<record::LoggedEvent>(&record)) logged->outcome.rule.reset();
    }
  }
  return segments;
}

TEST(SessionReplay, SwitchOfThePlacementRuleReplays) {
  MemoryLog::Segments segments;
  EXPECT_GE(RecordAgents(segments), 1);
  const SessionReplay replay = Replay(segments);
  ExpectIdentical(replay);
  EXPECT_TRUE(replay.exact());
  // The same events give the same choices.
  ExpectIdentical(Replay(WithoutRules(segments)));
}

// The recorded rule is used even if this program would choose another.
TEST(SessionReplay, RecordedPlacementRuleIsObeyed) {
  MemoryLog::Segments segments;
  EXPECT_EQ(RecordAgents(segments, core::PlacementRule::kCounts, 100'000), 1);
  ASSERT_GT(segments.size(), 3u);
  ExpectIdentical(Replay(segments));
  const SessionReplay chooses = Replay(WithoutRules(segments));
  EXPECT_LT(chooses.counts().identical, chooses.counts().decisions);
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
      const SessionReplay replay = Replay(segments);
      ExpectIdentical(replay);
      EXPECT_TRUE(replay.exact());
      if (HasFailure()) return;
    }
  }
}

// Coupled ranks that keep to levels: which ones do, and the level in force, are in the log.
TEST(SessionReplay, MeteredRanksReplay) {
  constexpr int kRanks = 3;
  int levels = 0;
  MemoryLog::Segments segments;
  {
    const core::SchedulerOptions options;
    const core::PolicySetting setting = {"bf_io_auto", {}};
    record::Recorder recorder(std::make_unique<MemoryLog>(&segments, 4000), {"test", 1 << 20}, options,
                              setting, "none");
    core::Cluster cluster(options, setting, {}, nullptr, &recorder);
    cluster.Apply(core::AddGroup{0, core::GroupKind::kCoupled});
    core::OpenEpoch epoch{0, std::vector<core::EpochMember>(kRanks)};
    for (core::EpochMember& member : epoch.members) {
      member.spec = {16, 100'000, true};
      member.spec.cost = BatchCost{.c_s = 0.01, .a_s_per_token = 1e-4, .b0_tokens = 0};
    }
    cluster.Apply(epoch);
    Rng rng(3);
    struct Running {
      core::RequestId id;
      int64_t prompt, left, output;
    };
    std::vector<std::vector<Running>> running(kRanks);
    std::vector<int64_t> applied(kRanks, 0), steps(kRanks, 0);
    std::map<core::RequestId, Running> waiting;
    core::RequestId last = 1 << 20;
    const auto plan = [&] {
      while (const auto made = cluster.Apply(core::MakePlan{0}).plan) {
        levels += made->level_s.has_value() ? 1 : 0;
        for (const core::Placement& placement : made->placements)
          running[static_cast<size_t>(placement.worker)].push_back(waiting.extract(placement.id).mapped());
        for (int g = 0; g < kRanks; ++g) applied[g] = std::max(applied[g], made->apply_steps[g]);
      }
    };
    for (int step = 1; step <= 400; ++step) {
      if (rng.Below(3) == 0) {
        core::RequestSpec spec = {
            .id = ++last, .prefill_tokens = static_cast<int64_t>(20 + rng.Below(400)), .max_new_tokens = 100};
        ASSERT_TRUE(cluster.Apply(core::Enqueue{spec}).status.ok());
        waiting[spec.id] = {spec.id, spec.prefill_tokens, spec.prefill_tokens,
                            1 + static_cast<int64_t>(rng.Below(60))};
      }
      plan();
      for (int g = 0; g < kRanks; ++g) {
        if (running[g].empty()) continue;
        core::StepReport report = {.step = ++steps[g], .applied_plan = applied[g]};
        report.prefill.emplace().token_budget = 256;
        // For some steps one of them does not.
        report.prefill->metered = g > 0 || step % 100 < 80;
        std::vector<core::RequestId> finished;
        for (Running& one : running[g]) {
          report.load_tokens += one.prompt++;
          if ((one.left = std::max<int64_t>(0, one.left - 40)) > 0) {
            report.prefill->prompts.push_back({one.id, one.left});
            --one.prompt;
          } else if (--one.output == 0) {
            finished.push_back(one.id);
          }
        }
        std::erase_if(running[g], [](const Running& one) { return one.output == 0; });
        report.finished = finished;
        report.group_idle = running[g].empty();
        ASSERT_TRUE(cluster.Apply(core::Report{0, g, report}).status.ok());
        plan();
      }
      recorder.Flush();
    }
  }
  EXPECT_GT(levels, 20);
  ASSERT_GT(segments.size(), 1u);
  const SessionReplay replay = Replay(segments);
  ExpectIdentical(replay);
  EXPECT_TRUE(replay.exact());
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
        session.after_turn = [&] { recorder.Flush(); };
        session.Run(200);
      }
      ASSERT_GT(segments.size(), 3u);
      const SessionReplay replay = Replay(segments);
      ExpectIdentical(replay);
      EXPECT_TRUE(replay.exact());
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
  Nth<core::Enqueue>(segments, 5).outcome.status = absl::ResourceExhaustedError("");
  const SessionReplay replay = Replay(segments);
  EXPECT_TRUE(replay.Failed());
  EXPECT_THAT(replay.counts().first_difference, HasSubstr("expected {\"status\":8}; got {}"));
}

TEST(SessionReplay, WhatIfRunsAnotherPolicyOnTheRecordedSnapshots) {
  SessionSetup setup = {.policy = "fcfs"};
  const MemoryLog::Segments segments = Record(setup, 1, 300);
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
  EXPECT_THAT(ReplayText(log, replay), HasSubstr("decisions identical"));
}

}  // namespace
}  // namespace bfio::sim
