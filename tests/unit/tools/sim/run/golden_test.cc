// The simulator against hand-computed numbers, and against the figures that the project's documents quote;
// and its observers.
#include <gmock/gmock.h>

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "common/workload/trace.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/testing/uniform_prompts.h"
#include "tools/sim/run/simulation.h"
#include "tools/sim/run/steps_csv.h"

namespace bfio::sim {
namespace {

using ::testing::ElementsAre;
using ::testing::UnorderedElementsAre;

Trace SixRequests() {
  Trace trace = {.source = "six"};
  for (auto [s, o] :
       std::vector<std::pair<int64_t, int64_t>>{{10, 2}, {20, 1}, {30, 3}, {40, 1}, {50, 2}, {60, 1}}) {
    trace.requests.push_back({static_cast<double>(trace.requests.size()), s, o});
  }
  return trace;
}

SimOptions ThreeWorkersOfOneSlot() {
  SimOptions options = {.policy = "fcfs", .reveal = 6, .warmup = 0, .steps = 3, .workers = 3, .batch = 1};
  options.cost.c_s = 1;
  options.cost.tl_s_per_token = 0.1;
  return options;
}

// Step 1: r1, r2, r3 start: loads 10 20 30, 1 + 0.1 * 30 = 4 s; r2 completes.
// Step 2: r4 follows r2:    loads 11 40 31, 5 s; r1 and r4 complete.
// Step 3: r5, r6 start:     loads 50 60 32, 7 s; r3 and r6 complete.
TEST(GoldenTest, ThreeWorkersSixRequestsByHand) {
  const Trace trace = SixRequests();
  std::vector<std::vector<int64_t>> loads;
  const auto run = (*Simulation::Create(ThreeWorkersOfOneSlot(), trace))->Run({}, [&](const StepView& view) {
    loads.emplace_back(view.loads.begin(), view.loads.end());
  });
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_THAT(loads, ElementsAre(ElementsAre(10, 20, 30), ElementsAre(11, 40, 31), ElementsAre(50, 60, 32)));
  EXPECT_DOUBLE_EQ((*run)["avg_imbalance_tokens"], (30 + 38 + 38) / 3.0);
  EXPECT_DOUBLE_EQ((*run)["idle_fraction"], ((1 - 60 / 90.0) + (1 - 82 / 120.0) + (1 - 142 / 180.0)) / 3);
  EXPECT_DOUBLE_EQ((*run)["throughput_tokens_per_s"], 9 / 16.0);
  EXPECT_DOUBLE_EQ((*run)["step_s_mean"], 16 / 3.0);
  EXPECT_EQ((*run)["completed"], 5);
  EXPECT_DOUBLE_EQ((*run)["tpot_s_mean"], (4 / 1.0 + 9 / 2.0 + 5 / 1.0 + 16 / 3.0 + 7 / 1.0) / 5);
  EXPECT_DOUBLE_EQ((*run)["ttft_s_mean"], (4 + 4 + 4 + 9 + 16 + 16) / 6.0);
  EXPECT_DOUBLE_EQ((*run)["wait_steps_mean"], (0 + 0 + 0 + 1 + 2 + 2) / 6.0);
  EXPECT_EQ((*run)["wait_steps_max"], 2);
  const auto watts = [](double ratio) { return 100 + 300 * std::pow(ratio, 0.7); };
  EXPECT_NEAR((*run)["energy_j"],
              4 * (watts(10 / 30.0) + watts(20 / 30.0) + 400) +
                  5 * (watts(11 / 40.0) + 400 + watts(31 / 40.0)) +
                  7 * (watts(50 / 60.0) + 400 + watts(32 / 60.0)),
              1e-9);
}

TEST(GoldenTest, StepsBeforeWarmupAreNotCountedAndArrivalTimesAreTheTracesDividedByLoad) {
  Trace trace = SixRequests();
  SimOptions options = ThreeWorkersOfOneSlot();
  options.warmup = 2;
  options.steps = 1;
  const auto warm = (*Simulation::Create(options, trace))->Run();
  EXPECT_DOUBLE_EQ((*warm)["avg_imbalance_tokens"], 38);
  EXPECT_DOUBLE_EQ((*warm)["step_s_mean"], 7);
  EXPECT_EQ((*warm)["completed"], 2);
  trace.has_arrivals = true;
  options = ThreeWorkersOfOneSlot();
  options.mode = "arrivals";
  options.load = 0.1;  // arrivals at 0, 10, 20, ... s: r1 runs for 2 + 2.1 s, then idle until 10 s
  std::vector<std::vector<int64_t>> loads;
  const auto run = (*Simulation::Create(options, trace))->Run({}, [&](const StepView& view) {
    loads.emplace_back(view.loads.begin(), view.loads.end());
  });
  EXPECT_THAT(loads, ElementsAre(UnorderedElementsAre(10, 0, 0), UnorderedElementsAre(11, 0, 0),
                                 UnorderedElementsAre(20, 0, 0)));
  EXPECT_DOUBLE_EQ((*run)["ttft_s_mean"], (2 + 3) / 2.0);
}

TEST(GoldenTest, TracesWithoutRequestsOrArrivalsAreRefused) {
  SimOptions options = ThreeWorkersOfOneSlot();
  EXPECT_EQ(Simulation::Create(options, Trace()).status().code(), absl::StatusCode::kInvalidArgument);
  options.mode = "arrivals";
  const Trace trace = SixRequests();
  EXPECT_EQ(Simulation::Create(options, trace).status().code(), absl::StatusCode::kInvalidArgument);
}

// --- quoted figures, on the built-in profiles and, where available, on the public traces ---

struct Figure {
  // Name of a built-in profile, or file name of a trace.
  const char* workload;
  const char* policy;
  // In tokens, percent and tokens per second; the run must agree with the printed digits.
  double imbalance, idle_percent, throughput;
  int64_t longest_wait;
};

class QuotedValueTest : public ::testing::TestWithParam<Figure> {
 protected:
  static bool IsFile(const std::string& workload) { return workload.find('.') != std::string::npos; }
  // Traces are not part of the repository: they lie in a folder beside it.
  static std::string Path(const std::string& trace) {
    return (std::filesystem::path(BFIO_SOURCE_DIR) / ".." / "shared" / "traces" / trace)
        .lexically_normal()
        .string();
  }
  static bool IsThere(const std::string& workload) {
    return !IsFile(workload) || std::filesystem::exists(Path(workload));
  }
  // Runs what `bfio_sim --trace` or `bfio_sim --profile` would run.
  static nlohmann::ordered_json Run(const std::string& workload, const std::string& policy) {
    const Trace trace =
        IsFile(workload) ? *ReadTrace(Path(workload)) : *SampleProfile(workload, kProfileRequests, 1);
    SimOptions options = {.policy = policy};
    return *(*Simulation::Create(options, trace))->Run();
  }
  static constexpr int64_t kProfileRequests = 20'000;
};

constexpr char kAzure[] = "AzureLLMInferenceTrace_conv.csv";
constexpr char kBurst[] = "burstgpt_sample_8000.csv";

TEST_P(QuotedValueTest, BaselineMatches) {
  if (!IsThere(GetParam().workload)) GTEST_SKIP() << "no trace " << Path(GetParam().workload);
  const auto run = Run(GetParam().workload, GetParam().policy);
  EXPECT_NEAR(run["avg_imbalance_tokens"], GetParam().imbalance, 0.02 * GetParam().imbalance);
  EXPECT_NEAR(100 * run["idle_fraction"].get<double>(), GetParam().idle_percent, 0.15);
  EXPECT_NEAR(run["throughput_tokens_per_s"], GetParam().throughput, 100);
  EXPECT_EQ(run["wait_steps_max"], GetParam().longest_wait);
}

INSTANTIATE_TEST_SUITE_P(Traces, QuotedValueTest,
                         ::testing::Values(Figure{kAzure, "fcfs", 18.73e4, 11.5, 7.73e4, 39},
                                           Figure{kAzure, "round_robin", 17.0e4, 10.6, 7.79e4, 39},
                                           Figure{kAzure, "least_tokens", 17.46e4, 10.9, 7.77e4, 39},
                                           Figure{kAzure, "lpt", 4.09e4, 2.8, 8.24e4, 39},
                                           Figure{kBurst, "fcfs", 26.86e4, 17.7, 8.03e4, 7},
                                           Figure{kBurst, "round_robin", 27.5e4, 18.1, 8.00e4, 7},
                                           Figure{kBurst, "least_tokens", 28.67e4, 18.6, 7.96e4, 7},
                                           Figure{kBurst, "lpt", 2.93e4, 2.3, 8.97e4, 7}),
                         [](const auto& param) {
                           return std::string(param.param.workload == kAzure ? "Azure_" : "BurstGpt_") +
                                  param.param.policy;
                         });

INSTANTIATE_TEST_SUITE_P(Profiles, QuotedValueTest,
                         ::testing::Values(Figure{"conversation", "fcfs", 26.48e4, 14.7, 7.13e4, 29},
                                           Figure{"conversation", "round_robin", 28.30e4, 15.4, 7.08e4, 29},
                                           Figure{"conversation", "least_tokens", 28.20e4, 15.5, 7.09e4, 29},
                                           Figure{"conversation", "lpt", 4.25e4, 2.7, 7.81e4, 29},
                                           Figure{"burstgpt", "fcfs", 26.38e4, 18.2, 8.29e4, 7},
                                           Figure{"burstgpt", "round_robin", 26.59e4, 18.4, 8.28e4, 7},
                                           Figure{"burstgpt", "least_tokens", 31.12e4, 20.6, 8.12e4, 7},
                                           Figure{"burstgpt", "lpt", 2.36e4, 1.9, 9.30e4, 7}),
                         [](const auto& param) {
                           return std::string(param.param.workload) + "_" + param.param.policy;
                         });

using BoundTest = QuotedValueTest;

// Of bf_io, by workload; the trace's are tested where they are there.
TEST_F(BoundTest, BfIoKeepsImbalanceAndLongestWait) {
  for (const auto& [workload, imbalance, longest_wait] :
       std::vector<std::tuple<const char*, double, int64_t>>{{"conversation", 1.3e4, 250},
                                                             {"burstgpt", 0.75e4, 130},
                                                             {kAzure, 1.8e4, 250},
                                                             {kBurst, 0.95e4, 250}}) {
    if (!IsThere(workload)) continue;
    const auto ours = Run(workload, "bf_io"), lpt = Run(workload, "lpt");
    EXPECT_LE(ours["avg_imbalance_tokens"], imbalance) << workload;
    EXPECT_LE(ours["wait_steps_max"], longest_wait) << workload;
    EXPECT_GT(ours["throughput_tokens_per_s"], lpt["throughput_tokens_per_s"]) << workload;
  }
}

// --- observers ---

// The CSV of steps and the overload condition observe a run without changing it.

SimOptions Short() {
  return {.policy = "least_tokens", .reveal = 12, .warmup = 10, .steps = 20, .workers = 4, .batch = 8};
}

TEST(StepsCsvTest, EveryStepIsALineThatAgreesWithTheRun) {
  SimOptions options = Short();
  options.workers = 2;
  // Requests of one step each, so that every step has a decision.
  Trace trace = *SampleProfile("code", 500, 2);
  for (TraceRequest& request : trace.requests) request.output_tokens = 1;
  const std::string path = (std::filesystem::path(::testing::TempDir()) / "steps_csv_test.csv").string();
  StepsCsv steps(path, options.workers);
  const auto run =
      *(*Simulation::Create(options, trace))->Run({}, [&](const StepView& view) { steps.Write(view); });
  ASSERT_TRUE(steps.Close().ok());
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  EXPECT_EQ(line, "step,begin_s,seconds,waiting,load_0,load_1,active_0,active_1");
  double seconds = 0, imbalance = 0, step = 0;
  while (std::getline(file, line)) {
    std::vector<double> of;
    for (const absl::string_view field : absl::StrSplit(line, ','))
      ASSERT_TRUE(absl::SimpleAtod(field, &of.emplace_back())) << line;
    ASSERT_EQ(of.size(), 8u);
    EXPECT_EQ(of[0], ++step);
    EXPECT_EQ(of[6] + of[7], static_cast<double>(options.reveal));
    if (step <= static_cast<double>(options.warmup)) continue;
    seconds += of[2];
    imbalance += std::abs(of[4] - of[5]);
  }
  EXPECT_EQ(step, 30);
  EXPECT_NEAR(seconds, run.at("simulated_s").get<double>(), 1e-8);
  EXPECT_NEAR(imbalance / 20, run.at("avg_imbalance_tokens").get<double>(), 1e-9);
  StepsCsv nowhere("/dev/null/steps.csv", 1);
  const absl::Status status = nowhere.Close();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), ::testing::HasSubstr("/dev/null/steps.csv"));
}

TEST(OverloadWatchTest, OneLengthSetAsideMustLeaveEnoughForTheFreeSlots) {
  OverloadWatch watch;
  EXPECT_EQ(watch.share(), 1);
  for (const int64_t prompt : {7, 7, 7, 5, 9}) watch.Add(prompt);
  watch.Decide(0);  // without a choice, so not counted
  watch.Decide(2);
  EXPECT_EQ(watch.share(), 1);
  watch.Decide(3);
  EXPECT_EQ(watch.share(), 0.5);
  watch.Remove(7);
  watch.Remove(7);  // remaining: 7, 5, 9
  watch.Decide(2);
  EXPECT_NEAR(watch.share(), 2.0 / 3, 1e-12);
  watch.Remove(5);
  watch.Add(9);  // remaining: 7, 9, 9
  watch.Decide(2);
  EXPECT_EQ(watch.share(), 0.5);
}

TEST(OverloadWatchTest, ADeepPoolMeetsTheConditionAndAShallowOneDoesNot) {
  const Trace trace = bfio::testing::UniformPromptsGeometricOutputs(1, 100, 0.1, 3000, 7);
  SimOptions options = Short();
  options.policy = "fcfs";
  options.warmup = 50;
  options.steps = 200;
  options.reveal = 100;
  EXPECT_EQ((*(*Simulation::Create(options, trace))->Run()).at("overloaded_fraction"), 1);
  options.reveal = 2;
  EXPECT_LT((*(*Simulation::Create(options, trace))->Run()).at("overloaded_fraction"), 0.5);
}

}  // namespace
}  // namespace bfio::sim
