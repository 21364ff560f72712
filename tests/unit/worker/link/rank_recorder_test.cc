#include "worker/link/rank_recorder.h"

#include "gtest/gtest.h"

namespace bfio::worker {
namespace {

TEST(RankRecorderTest, PhasesFollowARanksLifetime) {
  RankRecorder recorder("w", {.slots = 4, .kv_tokens = 100});
  const auto record = [&](void (*change)(RankTelemetry&)) { recorder.Record(change); };
  EXPECT_EQ(recorder.telemetry().phase, RankPhase::kStarting);
  record([](RankTelemetry& of) { of.started = true; });
  EXPECT_EQ(recorder.telemetry().phase, RankPhase::kConnecting);
  record([](RankTelemetry& of) { of.connected = true; });
  EXPECT_EQ(recorder.telemetry().phase, RankPhase::kJoined);
  record([](RankTelemetry& of) { of.in_epoch = true; });
  EXPECT_EQ(recorder.telemetry().phase, RankPhase::kServing);
  record([](RankTelemetry& of) { of.connected = false; });
  EXPECT_EQ(recorder.telemetry().phase, RankPhase::kServing) << "the group steps on without a router";
  EXPECT_FALSE(recorder.telemetry().connected);
  record([](RankTelemetry& of) { of.in_epoch = false; });
  EXPECT_EQ(recorder.telemetry().phase, RankPhase::kConnecting);
  record([](RankTelemetry& of) { of.connected = true; });
  record([](RankTelemetry& of) { of.leaving = true; });
  EXPECT_EQ(recorder.telemetry().phase, RankPhase::kLeaving);
}

TEST(RankRecorderTest, AStuckStepLoopIsUnhealthyAndNamesItsTask) {
  RankRecorder recorder("w", {});
  absl::Time now = absl::UnixEpoch() + absl::Hours(1);
  EXPECT_TRUE(recorder.Health(now).ok()) << "it has not begun";
  const auto stuck = [&](LoopTask task, absl::Duration timeout, absl::Duration after) {
    recorder.OnTask(task, 7, timeout, now);
    now += after;
    return std::string(recorder.Health(now).message());
  };
  const absl::Duration timeout = absl::Seconds(10), limit = absl::Seconds(30);
  for (const LoopTask task : {LoopTask::kForming, LoopTask::kComputing, LoopTask::kAtBarrier})
    EXPECT_EQ(stuck(task, timeout, limit), "");
  const std::string rest = " for 31s; the limit is 30s; 0 steps completed";
  const absl::Duration longer = limit + absl::Seconds(1);
  EXPECT_EQ(stuck(LoopTask::kForming, timeout, longer), "w: stuck forming an epoch's barrier" + rest);
  EXPECT_EQ(stuck(LoopTask::kComputing, timeout, longer), "w: stuck computing step 7" + rest);
  EXPECT_EQ(stuck(LoopTask::kAtBarrier, timeout, longer), "w: stuck at the barrier of step 7" + rest);
  EXPECT_EQ(stuck(LoopTask::kWaiting, timeout, absl::Hours(24)), "") << "an idle group may wait";
  EXPECT_EQ(stuck(LoopTask::kComputing, absl::Milliseconds(1), RankRecorder::kLeastPatience), "");
  EXPECT_NE(stuck(LoopTask::kComputing, absl::Milliseconds(1), 2 * RankRecorder::kLeastPatience), "");
  recorder.OnTask(LoopTask::kWaiting, 0, {}, now);
  EXPECT_TRUE(recorder.Health(now).ok()) << "it goes on";
}

}  // namespace
}  // namespace bfio::worker
