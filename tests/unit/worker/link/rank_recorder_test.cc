#include "worker/link/rank_recorder.h"

#include "gtest/gtest.h"

namespace bfio::worker {
namespace {

StepRow Row(int32_t tokens, int64_t local_ns, std::optional<int64_t> gap_ns) {
  StepRow row;
  row.active = tokens;
  row.finished = 1;
  row.prefill_tokens = 10;
  row.local_ns = local_ns;
  row.barrier_wait_ns = 3'000'000;
  row.gap_ns = gap_ns;
  row.load_tokens = 77;
  return row;
}

TEST(RankRecorderTest, PhasesFollowARanksLifetime) {
  RankRecorder recorder("w", {.slots = 4, .kv_tokens = 100});
  EXPECT_EQ(recorder.telemetry().phase, RankPhase::kStarting);
  recorder.OnStarted();
  EXPECT_EQ(recorder.telemetry().phase, RankPhase::kConnecting);
  recorder.OnStreamUp();
  EXPECT_EQ(recorder.telemetry().phase, RankPhase::kJoined);
  recorder.OnEpoch(5, 1, 2, /*formed=*/false);
  EXPECT_EQ(recorder.telemetry().phase, RankPhase::kJoined);
  EXPECT_FALSE(recorder.telemetry().rank.has_value());
  recorder.OnEpoch(6, 1, 2, /*formed=*/true);
  EXPECT_EQ(recorder.telemetry().phase, RankPhase::kServing);
  EXPECT_EQ(recorder.telemetry().rank, 1);
  recorder.OnStreamDown();
  EXPECT_EQ(recorder.telemetry().phase, RankPhase::kServing) << "the group steps on without a router";
  EXPECT_FALSE(recorder.telemetry().connected);
  recorder.OnEpochEnd();
  EXPECT_EQ(recorder.telemetry().phase, RankPhase::kConnecting);
  recorder.OnStreamUp();
  recorder.OnLeaving();
  const RankTelemetry end = recorder.telemetry();
  EXPECT_EQ(end.phase, RankPhase::kLeaving);
  EXPECT_EQ(end.reconnects, 1u);
  EXPECT_EQ(end.epochs_formed, 1u);
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

TEST(RankRecorderTest, StepsAddUpAndAFailedOneCountsOnlyItsTokens) {
  RankRecorder recorder("w", {.slots = 4, .kv_tokens = 100});
  recorder.OnStep(Row(3, 1'000'000, std::nullopt), {.active_requests = 2, .free_kv_tokens = 60}, true);
  recorder.OnStep(Row(2, 2'000'000, 500'000),
                  {.active_requests = 1, .free_kv_tokens = 80, .held_requests = 1, .failed = 2}, true);
  recorder.OnStep(Row(4, 1'000'000, 500'000), {.active_requests = 2, .free_kv_tokens = 70, .failed = 1},
                  false);
  const RankTelemetry telemetry = recorder.telemetry();
  EXPECT_EQ(telemetry.steps, 2u);
  EXPECT_EQ(telemetry.generated_tokens, 9u);
  EXPECT_EQ(telemetry.prefill_tokens, 30u);
  EXPECT_EQ(telemetry.finished_requests, 3u);
  EXPECT_EQ(telemetry.failed_requests, 3u);
  EXPECT_DOUBLE_EQ(telemetry.local_s.sum(), 0.003);
  EXPECT_DOUBLE_EQ(telemetry.barrier_wait_s.sum(), 0.006);
  EXPECT_EQ(telemetry.gap_s.count(), 1u) << "the first step has none";
  EXPECT_EQ(telemetry.active_requests, 2);
  EXPECT_EQ(telemetry.free_kv_tokens, 70);
  EXPECT_EQ(telemetry.load_tokens, 77);
  recorder.OnResidents(0, 100);  // they were cancelled between two epochs
  EXPECT_EQ(recorder.telemetry().active_requests, 0);
  EXPECT_EQ(recorder.telemetry().free_kv_tokens, 100);
  EXPECT_EQ(recorder.telemetry().load_tokens, 0);
}

TEST(RankRecorderTest, UnreportedTokensCountUntilARouterGetsThem) {
  RankRecorder recorder("w", {});
  recorder.OnUnsent(3);
  recorder.OnUndelivered(7);
  recorder.OnUndelivered(5);
  recorder.OnStreamDown();
  EXPECT_EQ(recorder.telemetry().undelivered_tokens, 12);
  EXPECT_EQ(recorder.telemetry().unsent_messages, 0) << "they went with the stream";
  recorder.OnEpoch(1, 0, 1, /*formed=*/false);
  EXPECT_EQ(recorder.telemetry().undelivered_tokens, 12);
  recorder.OnEpoch(2, 0, 1, /*formed=*/true);
  EXPECT_EQ(recorder.telemetry().undelivered_tokens, 0);
}

}  // namespace
}  // namespace bfio::worker
