#include "tools/top/measurements.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace bfio::top {
namespace {

v1::ClusterState State(int64_t second, uint64_t steps) {
  v1::ClusterState state;
  state.mutable_timestamp()->set_seconds(1000 + second);
  state.mutable_uptime()->set_seconds(second);
  state.set_epoch(3);
  v1::StepTotals& totals = *state.mutable_steps();
  totals.set_steps(steps);
  totals.set_generated_tokens(10 * steps);
  totals.set_max_load_tokens(100.0 * static_cast<double>(steps));
  totals.set_mean_load_tokens(80.0 * static_cast<double>(steps));
  totals.set_barrier_wait_s(0.002 * static_cast<double>(steps));
  totals.set_rank_step_s(0.02 * static_cast<double>(steps));
  totals.set_decisions(steps);
  totals.set_decide_s(0.001 * static_cast<double>(steps));
  v1::Distribution& first = *state.mutable_latencies()->mutable_time_to_first_token_s();
  first.add_upper_bounds(1);
  first.add_upper_bounds(2);
  first.add_counts(5);
  first.add_counts(steps);
  first.add_counts(0);
  for (uint32_t rank = 0; rank < 3; ++rank) {
    v1::WorkerState& worker = *state.add_workers();
    // Listed in another order than that of the ranks.
    worker.set_worker_id(absl::StrCat("w", 2 - rank));
    worker.set_rank(2 - rank);
    worker.set_phase(v1::WORKER_PHASE_SERVING);
    worker.set_load_tokens(100 * (1 + rank));
    worker.set_slots(8);
    worker.set_active_requests(rank);
    worker.set_straggler_steps(rank == 1 ? steps : 7);
  }
  v1::WorkerState& joining = *state.add_workers();
  joining.set_worker_id("new");
  joining.set_phase(v1::WORKER_PHASE_JOINING);
  return state;
}

TEST(MeasurementsTest, RatesCoverTheTimeBetweenTwoStates) {
  const Measurements f = Compare(State(10, 100), State(20, 300));
  EXPECT_DOUBLE_EQ(f.seconds, 10);
  EXPECT_DOUBLE_EQ(f.steps_per_s.value(), 20);
  EXPECT_DOUBLE_EQ(f.tokens_per_s.value(), 200);
  EXPECT_NEAR(f.idle.value(), 0.2, 1e-12);
  EXPECT_NEAR(f.barrier_wait.value(), 0.1, 1e-12);
  EXPECT_NEAR(f.decide_s.value(), 0.001, 1e-12);
  // 200 of the samples are new and lie in (1, 2]; the 5 older ones do not count.
  EXPECT_NEAR(f.first_token_s.value().p50, 1.5, 1e-9);
  EXPECT_FALSE(f.between_tokens_s.has_value());
}

TEST(MeasurementsTest, LoadsRanksAndTheSlowest) {
  const Measurements f = Compare(State(10, 100), State(20, 300));
  EXPECT_EQ(f.ranks, 3u);
  EXPECT_EQ(f.max_load, 300u);
  EXPECT_EQ(f.min_load, 100u);
  EXPECT_DOUBLE_EQ(f.mean_load, 200);
  EXPECT_EQ(f.max_rank, 0u);
  EXPECT_EQ(f.straggler, 1u) << "rank 2 and 0 were not slower meanwhile";
  EXPECT_EQ(f.running, 3u);
  EXPECT_EQ(f.slots, 24u);
  ASSERT_EQ(f.workers.size(), 4u);
  EXPECT_EQ(f.workers[0].worker_id, "w0");
  EXPECT_EQ(f.workers[1].worker_id, "w1");
  EXPECT_DOUBLE_EQ(f.workers[1].slowest.value(), 1);
  EXPECT_EQ(f.workers[3].worker_id, "new");
  EXPECT_FALSE(f.workers[3].rank.has_value());
}

TEST(MeasurementsTest, WithoutElapsedTimeThereAreNoRates) {
  const v1::ClusterState state = State(10, 100);
  const Measurements f = Compare(state, state);
  EXPECT_FALSE(f.steps_per_s || f.tokens_per_s || f.idle || f.barrier_wait || f.first_token_s || f.straggler);
  EXPECT_EQ(f.max_load, 300u);
  EXPECT_FALSE(Compare(v1::ClusterState(), v1::ClusterState()).max_rank.has_value());
}

TEST(MeasurementsTest, AnotherRoutersCountersAreNotSubtracted) {
  const Measurements f = Compare(State(100, 5000), State(2, 20));
  EXPECT_FALSE(f.steps_per_s || f.tokens_per_s || f.idle);
  EXPECT_EQ(f.ranks, 3u);
}

TEST(MeasurementsTest, AStepOfThisEpochHasTheRanksTimes) {
  v1::StepSummary step;
  step.set_epoch(3);
  for (const uint64_t ns : {1'000'000, 2'000'000, 3'000'000}) {
    step.add_local_ns(ns);
    step.add_barrier_wait_ns(4'000'000 - ns);
  }
  Measurements f = Compare(State(1, 1), State(2, 2), absl::MakeConstSpan(&step, 1));
  EXPECT_DOUBLE_EQ(f.workers[2].local_s.value(), 0.003);
  EXPECT_DOUBLE_EQ(f.workers[2].wait_s.value(), 0.001);
  EXPECT_FALSE(f.workers[3].local_s.has_value());
  step.set_epoch(2);
  f = Compare(State(1, 1), State(2, 2), absl::MakeConstSpan(&step, 1));
  EXPECT_FALSE(f.workers[2].local_s.has_value()) << "ranks of another epoch";
  // A summary of a smaller group must not be read beyond its end.
  step.set_epoch(3);
  step.mutable_local_ns()->Truncate(1);
  EXPECT_FALSE(
      Compare(State(1, 1), State(2, 2), absl::MakeConstSpan(&step, 1)).workers[2].local_s.has_value());
}

TEST(MeasurementsTest, RanksOfSeveralGroupsAreKeptApart) {
  const auto state = [](uint64_t uptime, uint64_t stragglers) {
    v1::ClusterState cluster;
    cluster.mutable_uptime()->set_seconds(static_cast<int64_t>(uptime));
    for (uint32_t index = 0; index < 2; ++index) {
      v1::GroupState& group = *cluster.add_groups();
      group.set_index(4 + index);
      group.set_name(index == 0 ? "0" : "blue");
      group.set_epoch(3 + index);
      for (uint32_t rank = 0; rank < 2; ++rank) {
        v1::WorkerState& worker = *cluster.add_workers();
        worker.set_worker_id(absl::StrCat(index, rank));
        worker.set_group(group.name());
        worker.set_rank(rank);
        worker.set_load_tokens(10 * index + rank);
        worker.set_straggler_steps(rank == 1 ? stragglers * (1 + index) : 0);
      }
    }
    return cluster;
  };
  v1::StepSummary step;
  step.set_group(5);
  step.set_epoch(4);
  for (const uint64_t ns : {1'000'000, 2'000'000}) {
    step.add_local_ns(ns);
    step.add_barrier_wait_ns(0);
  }
  const Measurements f = Compare(state(1, 5), state(2, 9), absl::MakeConstSpan(&step, 1));
  EXPECT_TRUE(f.several_groups);
  EXPECT_EQ(f.ranks, 4u);
  ASSERT_EQ(f.workers.size(), 4u);
  EXPECT_EQ(f.workers[1].group, "0");
  EXPECT_EQ(f.workers[1].slowest, 1.0) << "of its own group's steps";
  EXPECT_FALSE(f.workers[1].local_s.has_value()) << "the step is the other group's";
  EXPECT_EQ(f.workers[3].group, "blue");
  EXPECT_DOUBLE_EQ(f.workers[3].local_s.value(), 0.002);
  EXPECT_EQ(f.max_group, "blue");
  EXPECT_EQ(f.max_rank, 1u);
  EXPECT_EQ(f.straggler_group, "blue");
}

}  // namespace
}  // namespace bfio::top
