// Drift, instant dispatch, late reports, unequal workers and closed loops: each in a case small enough to
// check by hand.
#include <map>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "nlohmann/json.hpp"
#include "tools/sim/run/drift.h"
#include "tools/sim/run/hints.h"
#include "tools/sim/run/local_time.h"
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

SimOptions Small(const std::string& policy, int32_t workers, int32_t batch) {
  return {.policy = policy, .warmup = 0, .steps = 0, .count_drain = true, .workers = workers, .batch = batch};
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
      EXPECT_EQ(drift.LastStep(first, output), step);
    }
  }
}

TEST(DriftTest, BadTextIsRefusedByName) {
  for (const char* text :
       {"", "grow", "growth:1", "throttled", "throttled:2", "throttled:nan", "speculative:0:0.5",
        "speculative:3", "speculative:3:1.5", "sequence:", "sequence:1,-1", "sequence:x"}) {
    const auto drift = Drift::Parse(text, 1);
    EXPECT_EQ(drift.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(drift.status().message(), HasSubstr("--drift"));
  }
}

// Every request followed explicitly, against the simulation's closed sums.
TEST(DriftTest, LoadsAndTokensOfARunFollowTheDrift) {
  const Trace trace = Requests({{10, 4}, {20, 1}, {30, 9}, {40, 2}, {50, 17}, {60, 3}, {70, 5}});
  for (const char* text :
       {"growth", "constant", "throttled:0.4", "sequence:3,0,1", "speculative:2:0.5", "speculative:5:1"}) {
    SimOptions options = Small("fcfs", 2, 2);
    options.reveal = 3;
    options.requests = 70;
    options.drift = text;
    Drift drift = *Drift::Parse(text, options.seed);
    struct Running {
      int32_t worker;
      int64_t load, left;
    };
    std::map<core::RequestId, Running> running;
    int64_t tokens = 0, expected_tokens = 0;
    for (const TraceRequest& row : trace.requests) expected_tokens += 10 * row.output_tokens;
    const auto run = Simulate(options, trace, [&](const StepView& view) {
      const int64_t grows = drift.GrowthThrough(view.step) - drift.GrowthThrough(view.step - 1);
      const int64_t makes = drift.TokensThrough(view.step) - drift.TokensThrough(view.step - 1);
      for (const Started& started : view.started) {
        const TraceRequest& row = trace.requests[(started.id - 1) % 7];
        running[started.id] = {started.worker, row.prompt_tokens, row.output_tokens};
      }
      std::vector<int64_t> loads(2);
      int64_t made = 0;
      for (auto& [id, request] : running) {
        loads[request.worker] += request.load;
        request.load += grows;
        made += std::min(makes, request.left);
        request.left -= std::min(makes, request.left);
      }
      EXPECT_EQ(std::vector<int64_t>(view.loads.begin(), view.loads.end()), loads) << text;
      EXPECT_EQ(view.tokens, made) << text << " step " << view.step;
      tokens += made;
      for (const auto& ids : view.finished) {
        for (core::RequestId id : ids) {
          EXPECT_EQ(running.at(id).left, 0) << text;
          running.erase(id);
        }
      }
      for (const auto& [id, request] : running) EXPECT_GT(request.left, 0) << text;
    });
    EXPECT_EQ(tokens, expected_tokens) << text;
    EXPECT_EQ(run.at("tokens"), expected_tokens) << text;
  }
}

// --- instant dispatch ---

// Two workers of one slot, three requests at once, round robin: the third waits behind the first, although
// the second worker is free sooner. With a common pool it would not wait.
TEST(InstantDispatchTest, ARequestWaitsWhereItWasSent) {
  const Trace trace = Requests({{10, 4}, {20, 1}, {30, 1}});
  SimOptions options = Small("round_robin", 2, 1);
  options.reveal = 3;
  options.requests = 3;
  options.dispatch = "instant";
  EXPECT_THAT(Loads(options, trace), ElementsAre(ElementsAre(10, 20), ElementsAre(11, 0), ElementsAre(12, 0),
                                                 ElementsAre(13, 0), ElementsAre(30, 0)));
  options.dispatch = "pool";
  EXPECT_THAT(Loads(options, trace),
              ElementsAre(ElementsAre(10, 20), ElementsAre(11, 30), ElementsAre(12, 0), ElementsAre(13, 0)));
}

// least_tokens must count its own dispatches at once, but sees loads only when they are reported.
TEST(InstantDispatchTest, DispatchesCountBeforeTheyAreReported) {
  const Trace trace = Requests({{10, 9}, {20, 9}, {5, 9}, {8, 9}});
  SimOptions options = Small("least_tokens", 2, 2);
  options.reveal = 4;
  options.requests = 4;
  options.dispatch = "instant";
  options.report_delay = 50;
  // 10 tokens to the first worker, 20 to the second, 5 to the first (10 < 20), 8 to the first (15 < 20),
  // which has no free slot.
  EXPECT_THAT(Loads(options, trace)[0], ElementsAre(15, 20));
}

TEST(InstantDispatchTest, UnsupportedModesAreRefused) {
  const Trace trace = Requests({{10, 9}});
  SimOptions options = Small("least_tokens", 2, 2);
  options.requests = 1;
  options.dispatch = "instant";
  options.plan_mode = "pipelined";
  EXPECT_EQ(Simulation::Create(options, trace).status().code(), absl::StatusCode::kInvalidArgument);
}

// --- late plans ---

// One worker, one slot, requests of two tokens. In lockstep they follow each other directly; if a plan comes
// d steps late, the slot stays empty for d steps in between.
TEST(LatePlanTest, AFreedSlotStaysEmptyUntilThePlanComes) {
  const Trace trace = Requests({{10, 2}});
  SimOptions options = Small("fcfs", 1, 1);
  options.reveal = 1;
  options.requests = 2;
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

TEST(LatePlanTest, DelayCostsSlots) {
  const Trace trace = *SampleProfile("conversation", 2000, 3);
  SimOptions options = {.reveal = 32, .warmup = 300, .steps = 600, .workers = 4, .batch = 16};
  double before = 2;
  for (int32_t delay : {0, 4, 16}) {
    options.report_delay = delay;
    const double taken = Simulate(options, trace).at("slots_taken_fraction");
    EXPECT_LT(taken, before);
    before = taken;
  }
}

// --- unequal workers, jitter ---

TEST(LocalTimeTest, SpeedsScaleLocalTimes) {
  SimOptions options = Small("fcfs", 3, 1);
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
  SimOptions options = Small("fcfs", 1, 1);
  options.cost = {1, 0, 0};
  options.jitter = 0.2;
  LocalTime local(options);
  double sum = 0, log_sum = 0, log_squares = 0;
  constexpr int kSteps = 20'000;
  for (int i = 0; i < kSteps; ++i) {
    const double seconds = local.Measure({0}, {0})[0];
    sum += seconds;
    log_sum += std::log(seconds);
    log_squares += std::log(seconds) * std::log(seconds);
  }
  EXPECT_NEAR(sum / kSteps, 1, 0.01);
  EXPECT_NEAR(std::sqrt(log_squares / kSteps - log_sum / kSteps * log_sum / kSteps), 0.2, 0.01);
}

TEST(LocalTimeTest, APolicyWithKnownSpeedsHasShorterSteps) {
  const Trace trace = *SampleProfile("conversation", 4000, 3);
  SimOptions options = {.reveal = 64, .workers = 4, .batch = 32, .speeds = {1, 1, 1, 0.6}};
  options.cost.c_s = 1e-3;
  const double told = Simulate(options, trace).at("step_s_mean");
  options.tell_speeds = false;
  EXPECT_LT(told, 0.97 * Simulate(options, trace).at("step_s_mean").get<double>());
}

// --- closed loops, refusals, hints ---

// 0.02 s are as long as 200,000 tokens of load.
TEST(ClosedModeTest, BatchesWaitByTheCostOfTheSimulatedStep) {
  const Trace trace = *SampleProfile("conversation", 20'000, 1);
  const auto waits = [&](const std::string& admission) {
    SimOptions options = Small("bf_io_auto", 2, 64);
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

TEST(ClosedModeTest, ConcurrencyBoundsRequestsInTheSystem) {
  const Trace trace = *SampleProfile("code", 500, 3);
  SimOptions options = Small("bf_io_auto", 2, 4);
  options.mode = "closed";
  options.concurrency = 11;
  options.requests = 200;
  int64_t steps_full = 0;
  Simulate(options, trace, [&](const StepView& view) {
    const int64_t in_system = view.waiting + view.residents;
    EXPECT_LE(in_system, 11);
    if (in_system == 11) ++steps_full;
  });
  EXPECT_GT(steps_full, 100);
}

TEST(KvTest, ARequestThatFitsNowhereIsRefusedAndCounted) {
  const Trace trace = Requests({{10, 4}, {500, 4}, {30, 4}});
  SimOptions options = Small("fcfs", 1, 2);
  options.requests = 3;
  options.kv_tokens = 100;
  const auto run = Simulate(options, trace);
  EXPECT_EQ(run.at("refused"), 1);
  EXPECT_EQ(run.at("completed"), 2);
}

TEST(KvTest, ATraceWithoutAnyFittingRequestIsAnError) {
  const Trace trace = Requests({{10, 4}, {500, 4}});
  SimOptions options = Small("fcfs", 1, 2);
  options.steps = 100;
  options.kv_tokens = 5;
  const auto run = (*Simulation::Create(options, trace))->Run();
  EXPECT_EQ(run.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(run.status().message(), HasSubstr("--kv_tokens=5"));
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
  SimOptions options = Small("fcfs", 1, 1);
  options.reveal = 2;
  options.requests = 2;
  EXPECT_EQ(Simulate(options, trace).at("steps"), 6);
  options.count_drain = false;
  const auto run = Simulate(options, trace);
  EXPECT_EQ(run.at("steps"), 1);
  // All requests are counted as completed, also those of the drain.
  EXPECT_EQ(run.at("completed"), 2);
}

TEST(OptionsTest, EndlessAndInvalidOptionsAreRefused) {
  const auto refused = [](const auto& change) {
    SimOptions options;
    change(options);
    return Validate(options).code() == absl::StatusCode::kInvalidArgument;
  };
  EXPECT_FALSE(refused([](SimOptions&) {}));
  EXPECT_TRUE(refused([](SimOptions& o) { o.steps = 0; }));
  EXPECT_TRUE(refused([](SimOptions& o) { o.mode = "closed"; }));
  EXPECT_TRUE(refused([](SimOptions& o) { o.mode = "open"; }));
  EXPECT_TRUE(refused([](SimOptions& o) { o.dispatch = "push"; }));
  EXPECT_TRUE(refused([](SimOptions& o) { o.plan_mode = "async"; }));
  EXPECT_TRUE(refused([](SimOptions& o) { o.speeds = {1, 0}; }));
  EXPECT_TRUE(refused([](SimOptions& o) { o.jitter = -1; }));
  EXPECT_TRUE(refused([](SimOptions& o) { o.prediction_error = 1.5; }));
  EXPECT_TRUE(refused([](SimOptions& o) {
    o.kv_tokens = 1000;
    o.drift = "sequence:5";
  }));
}

}  // namespace
}  // namespace bfio::sim
