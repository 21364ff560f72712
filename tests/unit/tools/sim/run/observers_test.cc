// The CSV of steps and the overload condition observe a run without changing it.
#include <gmock/gmock.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "nlohmann/json.hpp"
#include "tests/testing/uniform_prompts.h"
#include "tools/sim/run/simulation.h"
#include "tools/sim/run/steps_csv.h"

namespace bfio::sim {
namespace {

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
