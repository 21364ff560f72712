#include "worker/link/rank_recorder.h"

#include "gtest/gtest.h"

namespace bfio::worker {
namespace {

TEST(RankRecorderTest, PhasesFollowARanksLifetime) {
  RankRecorder recorder("w", {.slots = 4, .kv_tokens = 100});
  EXPECT_EQ(recorder.telemetry().phase, RankPhase::kStarting);
  recorder.OnStarted();
  EXPECT_EQ(recorder.telemetry().phase, RankPhase::kConnecting);
  recorder.OnStreamUp();
  EXPECT_EQ(recorder.telemetry().phase, RankPhase::kJoined);
  recorder.OnEpoch(/*formed=*/false);
  EXPECT_EQ(recorder.telemetry().phase, RankPhase::kJoined);
  recorder.OnEpoch(/*formed=*/true);
  EXPECT_EQ(recorder.telemetry().phase, RankPhase::kServing);
  recorder.OnStreamDown();
  EXPECT_EQ(recorder.telemetry().phase, RankPhase::kServing) << "the group steps on without a router";
  EXPECT_FALSE(recorder.telemetry().connected);
  recorder.OnEpochEnd();
  EXPECT_EQ(recorder.telemetry().phase, RankPhase::kConnecting);
  recorder.OnStreamUp();
  recorder.OnLeaving();
  const RankTelemetry end = recorder.telemetry();
  EXPECT_EQ(end.phase, RankPhase::kLeaving);
  EXPECT_EQ(end.epochs_failed, 1u);
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
