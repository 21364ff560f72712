#include "router/admin/router_state.h"

#include <gmock/gmock.h>

#include <string>

namespace bfio::router {
namespace {

using ::testing::ElementsAre;

WorkerView Worker(const std::string& id, std::optional<int32_t> rank) {
  WorkerView worker;
  worker.member.worker_id = id;
  worker.member.engine = "sim";
  worker.member.slots = 8;
  worker.member.kv_tokens = 1000;
  if (!rank) return worker;
  worker.member.rank = *rank;
  worker.straggler_steps = 4;
  core::Scheduler::WorkerAccount account = {
      .active = 2, .inflight = 1, .load_tokens = 50, .reserved_kv_tokens = 400};
  account.spec.time_per_token = 1.5;
  account.spec.time_offset = 20;
  account.prefill = core::PrefillReport{512, {{1, 10}, {2, 20}}};
  worker.account = account;
  return worker;
}

GroupView ViewOfGroup(core::GroupIndex index, const std::string& name, uint64_t epoch) {
  GroupView group = {.index = index, .name = name, .epoch = epoch, .ready = true};
  group.steps.steps = 10;
  group.steps.barrier_wait_s = 0.5;
  group.steps.decide_max_s = 0.1 * static_cast<double>(epoch);
  group.scheduler.late_plans = 1;
  group.distributions.local_s.Add(0.01);
  group.distributions.solver_gap.Add(0);
  return group;
}

TEST(RouterStateTest, OneGroupsFieldsAreAlsoTheRouters) {
  RouterState state = {.timestamp = absl::FromUnixMillis(1'500),
                       .uptime = absl::Seconds(90),
                       .version = "1.2.3",
                       .policy = "bf_io",
                       .horizon = 20,
                       .objective = "square",
                       .expected_workers = 2,
                       .waiting = 3,
                       .max_waiting = 4096};
  state.scheduler.late_plans = 1;
  state.scheduler.held_back = 6;
  state.requests.queue_timeouts = 2;
  GroupView group = ViewOfGroup(0, "0", 7);
  group.workers.push_back(Worker("w0", 0));
  group.workers.push_back(Worker("w1", std::nullopt));
  state.groups.push_back(group);
  const v1::ClusterState proto = ToProto(state);
  EXPECT_EQ(proto.timestamp().seconds(), 1);
  EXPECT_EQ(proto.timestamp().nanos(), 500'000'000);
  EXPECT_EQ(proto.uptime().seconds(), 90);
  EXPECT_EQ(proto.version(), "1.2.3");
  EXPECT_EQ(proto.epoch(), 7u);
  EXPECT_EQ(proto.plan_mode(), v1::PLAN_MODE_PIPELINED);
  EXPECT_EQ(proto.policy().name(), "bf_io");
  EXPECT_EQ(proto.policy().horizon(), 20u);
  EXPECT_EQ(proto.policy().objective(), "square");
  EXPECT_EQ(proto.expected_workers(), 2u);
  EXPECT_EQ(proto.waiting_requests(), 3u);
  EXPECT_EQ(proto.max_waiting_requests(), 4096u);
  EXPECT_FALSE(proto.uncoupled());
  EXPECT_FALSE(proto.has_energy());
  EXPECT_EQ(proto.steps().steps(), 10u);
  EXPECT_EQ(proto.steps().late_plans(), 1u);
  EXPECT_EQ(proto.requests().held_back(), 6u);
  EXPECT_EQ(proto.requests().queue_timeouts(), 2u);
  ASSERT_EQ(proto.workers_size(), 2);
  const v1::WorkerState& serving = proto.workers(0);
  EXPECT_EQ(serving.worker_id(), "w0");
  EXPECT_EQ(serving.group(), "0");
  EXPECT_EQ(serving.phase(), v1::WORKER_PHASE_SERVING);
  EXPECT_EQ(serving.rank(), 0u);
  EXPECT_EQ(serving.active_requests(), 2u);
  EXPECT_EQ(serving.inflight_requests(), 1u);
  EXPECT_EQ(serving.load_tokens(), 50u);
  EXPECT_EQ(serving.reserved_kv_tokens(), 400u);
  EXPECT_EQ(serving.straggler_steps(), 4u);
  EXPECT_EQ(serving.time_per_token(), 1.5);
  EXPECT_EQ(serving.time_offset(), 20);
  EXPECT_EQ(serving.pending_prefill_tokens(), 30u);
  EXPECT_EQ(serving.token_budget(), 512u);
  const v1::WorkerState& joining = proto.workers(1);
  EXPECT_EQ(joining.phase(), v1::WORKER_PHASE_JOINING);
  EXPECT_FALSE(joining.has_rank());
  EXPECT_FALSE(joining.has_time_per_token());
  EXPECT_FALSE(joining.has_service_s());
}

TEST(RouterStateTest, OverSeveralGroupsStepsAddUpAndTheEpochIsTheLargest) {
  RouterState state;
  state.retired_steps.steps = 5;
  state.retired_distributions.local_s.Add(0.02);
  state.scheduler.late_plans = 9;
  for (int32_t index = 0; index < 2; ++index) {
    GroupView group = ViewOfGroup(index, index == 0 ? "0" : "blue", 3 + static_cast<uint64_t>(index));
    group.workers.push_back(Worker(index == 0 ? "a" : "b", 0));
    if (index == 1) group.model = "5eed";
    state.groups.push_back(group);
  }
  const v1::ClusterState proto = ToProto(state);
  EXPECT_EQ(proto.epoch(), 4u);
  EXPECT_EQ(proto.steps().steps(), 25u) << "those of groups that are gone, too";
  EXPECT_DOUBLE_EQ(proto.steps().barrier_wait_s(), 1);
  EXPECT_DOUBLE_EQ(proto.steps().decide_max_s(), 0.4);
  EXPECT_EQ(proto.steps().late_plans(), 9u);
  uint64_t measured = 0;
  for (const uint64_t count : proto.step_times().local_s().counts()) measured += count;
  EXPECT_EQ(measured, 3u);
  EXPECT_EQ(proto.solver_gap().counts(0), 2u);
  ASSERT_EQ(proto.groups_size(), 2);
  EXPECT_EQ(proto.groups(1).name(), "blue");
  EXPECT_EQ(proto.groups(1).index(), 1u);
  EXPECT_EQ(proto.groups(1).model(), "5eed");
  EXPECT_EQ(proto.groups(1).epoch(), 4u);
  EXPECT_TRUE(proto.groups(1).ready());
  EXPECT_EQ(proto.groups(1).steps().steps(), 10u);
  EXPECT_EQ(proto.groups(1).steps().late_plans(), 1u);
  ASSERT_EQ(proto.workers_size(), 2);
  EXPECT_EQ(proto.workers(0).group(), "0");
  EXPECT_EQ(proto.workers(1).group(), "blue");
}

TEST(RouterStateTest, WorkersMeasurementsAreShown) {
  WorkerView worker = Worker("w", std::nullopt);
  worker.member.service_s = 0.5;
  worker.member.telemetry.cost =
      StepCostEstimate{FittedValue{0.005, 1e-5}, std::nullopt, std::nullopt, 2e-5, 640, 3};
  EnergyReading energy = {.device = "x", .busy_j = 8, .idle_watts = 60};
  worker.energy = energy;
  RouterState state;
  state.groups.push_back(ViewOfGroup(0, "0", 1));
  state.groups[0].workers.push_back(worker);
  state.energy = EnergyTotals{8, 1, 2};
  const v1::ClusterState proto = ToProto(state);
  const v1::WorkerState& shown = proto.workers(0);
  EXPECT_EQ(shown.service_s(), 0.5);
  EXPECT_EQ(shown.cost().c_s().value(), 0.005);
  EXPECT_EQ(shown.cost().c_s().standard_error(), 1e-5);
  EXPECT_FALSE(shown.cost().has_tl_s_per_token());
  EXPECT_EQ(shown.cost().residual_s(), 2e-5);
  EXPECT_EQ(shown.cost().steps(), 640u);
  EXPECT_EQ(shown.cost().outliers(), 3u);
  EXPECT_EQ(shown.energy().device(), "x");
  EXPECT_EQ(shown.energy().busy_j(), 8);
  EXPECT_EQ(shown.energy().idle_watts(), 60);
  EXPECT_EQ(proto.energy().busy_j(), 8);
  EXPECT_EQ(proto.energy().barrier_j(), 1);
  EXPECT_EQ(proto.energy().parked_j(), 2);
}

TEST(RouterStateTest, RequestsAndTenantsAreCounted) {
  RouterState state;
  state.requests.accepted = 5;
  state.requests.refused_by_workers = 2;
  state.requests.ttft_objectives_met = 3;
  state.requests.ttft_objectives_missed = 1;
  state.tenants.push_back({"acme", 3, 2, 100, 40});
  state.latencies.queue_time_s.Add(0.01);
  const v1::ClusterState proto = ToProto(state);
  EXPECT_EQ(proto.requests().accepted(), 5u);
  EXPECT_EQ(proto.requests().refused_by_workers(), 2u);
  EXPECT_EQ(proto.requests().ttft_objectives_met(), 3u);
  EXPECT_EQ(proto.requests().ttft_objectives_missed(), 1u);
  ASSERT_EQ(proto.tenants_size(), 1);
  EXPECT_EQ(proto.tenants(0).tenant(), "acme");
  EXPECT_EQ(proto.tenants(0).accepted(), 3u);
  EXPECT_EQ(proto.tenants(0).completed(), 2u);
  EXPECT_EQ(proto.tenants(0).prompt_tokens(), 100u);
  EXPECT_EQ(proto.tenants(0).generated_tokens(), 40u);
  EXPECT_EQ(proto.latencies().queue_time_s().sum(), 0.01);
}

TEST(RouterStateTest, PlacementIsAbsentWithoutAChoice) {
  RouterState state;
  state.groups.resize(2);
  state.groups[1].placement =
      PlacementView{"horizon", 3, {{"horizon", 1}, {"headroom", 1.041}}, {{"fcfs", 1.2}}};
  const v1::ClusterState proto = ToProto(state);
  EXPECT_FALSE(proto.groups(0).has_placement());
  const v1::PlacementState& placement = proto.groups(1).placement();
  EXPECT_EQ(placement.rule(), "horizon");
  EXPECT_EQ(placement.switches(), 3u);
  ASSERT_EQ(placement.candidates_size(), 2);
  EXPECT_EQ(placement.candidates(1).rule(), "headroom");
  EXPECT_EQ(placement.candidates(1).step_ratio(), 1.041);
  ASSERT_EQ(placement.watched_size(), 1);
  EXPECT_EQ(placement.watched(0).rule(), "fcfs");
  EXPECT_EQ(placement.watched(0).step_ratio(), 1.2);
}

TEST(StepSummaryTest, KeepsAllFields) {
  StepSummary summary = {.group = 2,
                         .epoch = 3,
                         .step = 4,
                         .load_tokens = {10, 20},
                         .active_requests = {1, 2},
                         .local = {absl::Nanoseconds(5), absl::Nanoseconds(6)},
                         .barrier_wait = {absl::Nanoseconds(7), absl::ZeroDuration()},
                         .imbalance_tokens = 10,
                         .waiting_requests = 8,
                         .assigned = 9,
                         .decide = absl::Microseconds(3),
                         .stopped_early = true};
  v1::StepSummary proto = ToProto(summary);
  EXPECT_EQ(proto.group(), 2u);
  EXPECT_EQ(proto.epoch(), 3u);
  EXPECT_EQ(proto.step(), 4u);
  EXPECT_THAT(proto.load_tokens(), ElementsAre(10, 20));
  EXPECT_THAT(proto.active_requests(), ElementsAre(1, 2));
  EXPECT_THAT(proto.local_ns(), ElementsAre(5, 6));
  EXPECT_THAT(proto.barrier_wait_ns(), ElementsAre(7, 0));
  EXPECT_EQ(proto.imbalance_tokens(), 10u);
  EXPECT_EQ(proto.waiting_requests(), 8u);
  EXPECT_EQ(proto.assigned(), 9u);
  EXPECT_EQ(proto.decide_ns(), 3000u);
  EXPECT_TRUE(proto.stopped_early());
  EXPECT_FALSE(proto.has_rank());
  summary.rank = 0;
  EXPECT_TRUE(ToProto(summary).has_rank());
}

}  // namespace
}  // namespace bfio::router
