// Drift, instant dispatch, late reports, unequal workers and closed loops: each in a case small enough to
// check by hand.
#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "nlohmann/json.hpp"
#include "tools/sim/rank/drift.h"
#include "tools/sim/run/simulation.h"

namespace bfio::sim {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Trace Requests(const std::vector<std::pair<int64_t, int64_t>>& lengths) {
  Trace trace = {.source = "by hand"};
  for (const auto& [prompt, output] : lengths) trace.requests.push_back({0, prompt, output});
  return trace;
}

// So many requests, all revealed at once.
SimOptions Small(const std::string& policy, int32_t workers, int32_t batch, int64_t requests) {
  return {.policy = policy,
          .reveal = std::max<int64_t>(1, requests),
          .warmup = 0,
          .steps = 0,
          .requests = requests,
          .count_drain = true,
          .workers = workers,
          .batch = batch};
}

nlohmann::ordered_json Simulate(const SimOptions& options, const Trace& trace, const StepTap& tap = {}) {
  auto simulation = Simulation::Create(options, trace);
  EXPECT_TRUE(simulation.ok()) << simulation.status();
  auto run = (*simulation)->Run({}, tap);
  EXPECT_TRUE(run.ok()) << run.status();
  return *run;
}

std::vector<std::vector<int64_t>> Loads(const SimOptions& options, const Trace& trace) {
  std::vector<std::vector<int64_t>> loads;
  Simulate(options, trace,
           [&](const StepView& view) { loads.emplace_back(view.loads.begin(), view.loads.end()); });
  return loads;
}

// --- drift ---

TEST(DriftTest, SumsFollowTheIncrements) {
  const auto sums = [](const std::string& text) {
    Drift drift = *Drift::Parse(text, 1);
    std::vector<int64_t> result;
    for (int64_t step = 0; step <= 6; ++step) result.push_back(drift.GrowthThrough(step));
    return result;
  };
  EXPECT_THAT(sums("growth"), ElementsAre(0, 1, 2, 3, 4, 5, 6));
  EXPECT_THAT(sums("constant"), ElementsAre(0, 0, 0, 0, 0, 0, 0));
  EXPECT_THAT(sums("throttled:0.5"), ElementsAre(0, 0, 1, 1, 2, 2, 3));
  EXPECT_THAT(sums("sequence:2,0,3"), ElementsAre(0, 2, 2, 5, 7, 7, 10));
}

TEST(DriftTest, SpeculationGeneratesOneToDraftPlusOneTokens) {
  Drift drift = *Drift::Parse("speculative:3:0.6", 7);
  int64_t sum = 0;
  for (int64_t step = 1; step <= 20'000; ++step) {
    const int64_t made = drift.TokensThrough(step) - drift.TokensThrough(step - 1);
    ASSERT_GE(made, 1);
    ASSERT_LE(made, 4);
    sum += made;
  }
  // Expected tokens per step: 1 + p + p^2 + p^3.
  EXPECT_NEAR(static_cast<double>(sum) / 20'000, 1 + 0.6 + 0.36 + 0.216, 0.03);
  for (int64_t first : {1, 5, 100}) {
    for (int64_t output : {1, 2, 9, 50}) {
      int64_t step = first;
      while (drift.TokensThrough(step) - drift.TokensThrough(first - 1) < output) ++step;
      EXPECT_EQ(drift.StepWith(drift.TokensThrough(first - 1) + output), step);
    }
  }
}

TEST(DriftTest, BadTextIsRefusedByName) {
  for (const char* text :
       {"", "grow", "growth:1", "throttled", "throttled:2", "throttled:nan", "speculative:0:0.5",
        "speculative:3", "speculative:3:1.5", "sequence:", "sequence:1,-1", "sequence:x"}) {
    const absl::Status status = Drift::Parse(text, 1).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(status.message(), HasSubstr("--drift"));
  }
}

// --- instant dispatch ---

// Two workers of one slot, three requests at once, round robin: the third waits behind the first, although
// the second worker is free sooner. With a common pool it would not wait.
TEST(InstantDispatchTest, ARequestWaitsWhereItWasSent) {
  const Trace trace = Requests({{10, 4}, {20, 1}, {30, 1}});
  SimOptions options = Small("round_robin", 2, 1, 3);
  options.dispatch = "instant";
  EXPECT_THAT(Loads(options, trace), ElementsAre(ElementsAre(10, 20), ElementsAre(11, 0), ElementsAre(12, 0),
                                                 ElementsAre(13, 0), ElementsAre(30, 0)));
  options.dispatch = "pool";
  EXPECT_THAT(Loads(options, trace),
              ElementsAre(ElementsAre(10, 20), ElementsAre(11, 30), ElementsAre(12, 0), ElementsAre(13, 0)));
}

// least_tokens must count its own dispatches at once, but sees loads only when they are reported.
TEST(InstantDispatchTest, DispatchesCountBeforeTheyAreReported) {
  SimOptions options = Small("least_tokens", 2, 2, 4);
  options.dispatch = "instant";
  options.report_delay = 50;
  // 10 tokens to the first worker, 20 to the second, 5 to the first (10 < 20), 8 to the first (15 < 20),
  // which has no free slot.
  EXPECT_THAT(Loads(options, Requests({{10, 9}, {20, 9}, {5, 9}, {8, 9}}))[0], ElementsAre(15, 20));
}

// --- late plans ---

// One worker, one slot, requests of two tokens. In lockstep they follow each other directly; if a plan comes
// d steps late, the slot stays empty for d steps in between.
TEST(LatePlanTest, AFreedSlotStaysEmptyUntilThePlanComes) {
  const Trace trace = Requests({{10, 2}});
  SimOptions options = Small("fcfs", 1, 1, 2);
  options.reveal = 1;
  const std::vector<int64_t> first = {10}, second = {11}, empty = {0};
  EXPECT_THAT(Loads(options, trace), ElementsAre(first, second, first, second));
  options.report_delay = 2;
  // The delay also precedes the group's first plan.
  EXPECT_THAT(Loads(options, trace), ElementsAre(empty, empty, first, second, empty, empty, first, second));
  options.report_delay = 0;
  options.plan_mode = "pipelined";
  // An idle group is planned for at once.
  EXPECT_THAT(Loads(options, trace), ElementsAre(first, second, empty, first, second));
}

// --- unequal workers, jitter ---

TEST(LocalTimeTest, SpeedsScaleLocalTimes) {
  SimOptions options = Small("fcfs", 3, 1, 0);
  options.cost = {1, 0.1, 0.01};
  options.speeds = {1, 0.5};
  LocalTime local(options);
  const std::vector<int64_t> loads = {10, 20, 30}, prefill = {0, 100, 0};
  EXPECT_THAT(local.Measure(loads, prefill), ElementsAre(2, (1 + 2 + 1) / 0.5, 4));
  EXPECT_DOUBLE_EQ(local.Balanced(loads, prefill), (2 + 4 + 4) / 2.5);
  core::WorkerSpec spec;
  local.Describe(1, spec);
  // (C + t_l L) / 0.5 in units of t_l, less the common C / t_l: an offset of C / t_l and two per token.
  EXPECT_DOUBLE_EQ(spec.time_per_token, 2);
  EXPECT_DOUBLE_EQ(spec.time_offset, 10);
}

TEST(LocalTimeTest, JitterHasMeanOneAndTheGivenDeviation) {
  SimOptions options = Small("fcfs", 1, 1, 0);
  options.cost = {1, 0, 0};
  options.jitter = 0.2;
  LocalTime local(options);
  double sum = 0, log_sum = 0, log_squares = 0;
  for (int i = 0; i < 20'000; ++i) {
    const double seconds = local.Measure({0}, {0})[0], log = std::log(seconds);
    sum += seconds / 20'000;
    log_sum += log / 20'000;
    log_squares += log * log / 20'000;
  }
  EXPECT_NEAR(sum, 1, 0.01);
  EXPECT_NEAR(std::sqrt(log_squares - log_sum * log_sum), 0.2, 0.01);
}

// --- closed loops, refusals, hints ---

// 0.02 s are as long as 200,000 tokens of load.
TEST(ClosedModeTest, BatchesWaitByTheCostOfTheSimulatedStep) {
  const Trace trace = *SampleProfile("conversation", 20'000, 1);
  const auto waits = [&](const std::string& admission) {
    SimOptions options = Small("bf_io_auto", 2, 64, 0);
    options.mode = "closed";
    options.concurrency = 60;
    options.warmup = 100;
    options.steps = 1500;
    options.admission = admission;
    options.cost = {.c_s = 2e-2, .tl_s_per_token = 1e-7};
    const auto run = Simulate(options, trace);
    return std::pair(run["ttft_s_mean"].get<double>(), run["avg_imbalance_tokens"].get<double>());
  };
  EXPECT_EQ(waits("wait"), waits("wait:tokens=200000"));
  EXPECT_NE(waits("wait"), waits("wait:tokens=1000"));
}

TEST(KvTest, ARequestThatFitsNowhereIsRefusedAndCounted) {
  SimOptions options = Small("fcfs", 1, 2, 3);
  options.kv_tokens = 100;
  const Trace trace = Requests({{10, 4}, {500, 4}, {30, 4}});
  const auto run = Simulate(options, trace);
  EXPECT_EQ(run.at("refused"), 1);
  EXPECT_EQ(run.at("completed"), 2);
  options.kv_tokens = 5;
  const auto none = (*Simulation::Create(options, trace))->Run();
  EXPECT_EQ(none.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(none.status().message(), HasSubstr("--kv_tokens=5"));
}

TEST(HintModelTest, HintsRiseTowardsTheEndAndDependOnRequestAndStep) {
  HintModel hints{8, 0.5, 3};
  double near_sum = 0, far_sum = 0;
  for (core::RequestId id = 1; id <= 2000; ++id) {
    near_sum += hints.Show(id, 10, 1).value_or(0);
    far_sum += hints.Show(id, 10, 30).value_or(0);
    EXPECT_EQ(hints.Show(id, 10, 3), hints.Show(id, 10, 3));
  }
  EXPECT_GT(near_sum, 10 * far_sum);
  EXPECT_FALSE(hints.Show(1, 1, 10'000).has_value());
  EXPECT_NE(hints.Show(1, 10, 3), hints.Show(1, 11, 3));
}

TEST(EndTest, DrainIsCountedOnlyIfEnabled) {
  const Trace trace = Requests({{10, 1}, {10, 5}});
  SimOptions options = Small("fcfs", 1, 1, 2);
  EXPECT_EQ(Simulate(options, trace).at("steps"), 6);
  options.count_drain = false;
  const auto run = Simulate(options, trace);
  EXPECT_EQ(run.at("steps"), 1);
  // All requests are counted as completed, also those of the drain.
  EXPECT_EQ(run.at("completed"), 2);
}

TEST(OptionsTest, EndlessAndInvalidOptionsAreRefused) {
  using Change = void (*)(SimOptions&);
  const auto refused = [](Change change) {
    SimOptions options;
    change(options);
    return Validate(options).code() == absl::StatusCode::kInvalidArgument;
  };
  EXPECT_FALSE(refused([](SimOptions&) {}));
  for (const Change change : std::initializer_list<Change>{
           [](SimOptions& o) { o.steps = 0; }, [](SimOptions& o) { o.mode = "closed"; },
           [](SimOptions& o) { o.mode = "open"; }, [](SimOptions& o) { o.dispatch = "push"; },
           [](SimOptions& o) { o.plan_mode = "async"; },
           [](SimOptions& o) { o.kv_tokens = 1000, o.drift = "sequence:5"; },
           [](SimOptions& o) { o.dispatch = "instant", o.plan_mode = "pipelined"; },
           [](SimOptions& o) { o.dispatch = "instant", o.kv_tokens = 1000; }}) {
    EXPECT_TRUE(refused(change));
  }
}

}  // namespace
}  // namespace bfio::sim
