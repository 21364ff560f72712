// What all experiments share: estimates, the runner, and the files that come out.
#include "tools/sim/experiment/experiment.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "common/base/rng.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tools/sim/experiment/estimate.h"
#include "tools/sim/experiment/experiments.h"
#include "tools/sim/experiment/output.h"
#include "tools/sim/experiment/runner.h"

namespace bfio::sim {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(EstimateTest, IntervalOfAKnownSample) {
  // Mean 3, standard deviation sqrt(2.5), t(4) = 2.776.
  const Estimate estimate = EstimateMean({1, 2, 3, 4, 5});
  EXPECT_DOUBLE_EQ(estimate.mean, 3);
  EXPECT_DOUBLE_EQ(estimate.standard_deviation, std::sqrt(2.5));
  EXPECT_NEAR(estimate.half_width, 2.776 * std::sqrt(0.5), 1e-9);
  EXPECT_EQ(EstimateMean({7}).half_width, 0);
  EXPECT_EQ(EstimateMean({}).samples, 0);
}

TEST(EstimateTest, StudentsQuantileMeetsItsLimit) {
  EXPECT_NEAR(StudentT975(1), 12.706, 1e-3);
  EXPECT_NEAR(StudentT975(40), 2.021, 2e-3);
  EXPECT_NEAR(StudentT975(1'000'000), 1.96, 1e-3);
  for (int64_t degrees = 1; degrees < 200; ++degrees)
    EXPECT_GT(StudentT975(degrees), StudentT975(degrees + 1));
}

// 95 of 100 intervals hold the true mean, up to luck (2.5 standard deviations of it).
TEST(EstimateTest, IntervalsCover) {
  Rng rng(3);
  int covered = 0;
  constexpr int kRounds = 2000;
  for (int round = 0; round < kRounds; ++round) {
    std::vector<double> samples;
    for (int i = 0; i < 5; ++i) samples.push_back(10 + rng.Normal());
    const Estimate estimate = EstimateMean(samples);
    if (estimate.low() <= 10 && estimate.high() >= 10) ++covered;
  }
  EXPECT_NEAR(static_cast<double>(covered) / kRounds, 0.95, 2.5 * std::sqrt(0.95 * 0.05 / kRounds));
}

TEST(EstimateTest, RatiosArePairedBySeed) {
  const Estimate ratio = EstimateRatio({2, 20, 200}, {1, 10, 100});
  EXPECT_DOUBLE_EQ(ratio.mean, 2);
  EXPECT_DOUBLE_EQ(ratio.half_width, 0);
}

TEST(EstimateTest, SlopeOfAPower) {
  const std::vector<double> x = {1, 2, 4, 8, 16};
  std::vector<double> y;
  for (double value : x) y.push_back(3 * std::sqrt(value));
  EXPECT_NEAR(LogLogSlope(x, y).mean, 0.5, 1e-12);
  y[2] *= 1.3;
  EXPECT_GT(LogLogSlope(x, y).half_width, 0.05);
}

// --- the runner ---

std::vector<PlannedRun> SomeRuns() {
  const auto trace = std::make_shared<const Trace>(*SampleProfile("code", 2000, 1));
  std::vector<PlannedRun> runs;
  for (const char* policy : {"fcfs", "power_of_two", "bf_io", "bf_io_auto", "lpt"}) {
    for (uint64_t seed : {1, 2}) {
      PlannedRun& run = runs.emplace_back();
      run.name = policy;
      run.options.policy = policy;
      run.options.workers = 4;
      run.options.batch = 8;
      run.options.warmup = 50;
      run.options.steps = 200;
      run.options.seed = seed;
      run.options.jitter = 0.1;
      run.trace = trace;
    }
  }
  return runs;
}

TEST(RunnerTest, TheSameForAnyNumberOfThreads) {
  const auto results = [](int32_t threads) {
    auto runs = *Runner(threads, {}, {}).Run(SomeRuns());
    std::vector<std::string> texts;
    for (RunJson& run : runs) {
      for (const char* measured : {"decide_us_mean", "decide_us_p50", "decide_us_p99", "decide_us_max"}) {
        run.erase(measured);
      }
      texts.push_back(run.dump());
    }
    return texts;
  };
  const auto one = results(1);
  EXPECT_EQ(one, results(2));
  EXPECT_EQ(one, results(7));
}

TEST(RunnerTest, AnErrorNamesItsRun) {
  std::vector<PlannedRun> runs = SomeRuns();
  runs[3].name = "the bad one";
  runs[3].options.policy = "nobody";
  const auto results = Runner(2, {}, {}).Run(runs);
  EXPECT_EQ(results.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(results.status().message(), HasSubstr("the bad one"));
}

TEST(RunnerTest, StopsWhenAskedTo) {
  EXPECT_EQ(Runner(2, {}, [] { return false; }).Run(SomeRuns()).status().code(),
            absl::StatusCode::kCancelled);
}

TEST(RunnerTest, NothingToRunIsNoError) {
  EXPECT_TRUE(Runner(2, {}, {}).Run({})->empty());
}

// --- files ---

Findings SomeFindings() {
  Findings findings;
  findings.name = "sample";
  findings.title = "A <sample>";
  findings.text = {"Lead.", "More."};
  findings.parameters = {{"workers G", "4"}};
  report::Table table;
  table.title = "Numbers";
  table.columns = {{"policy", ""}, {"imbalance", "tokens"}};
  table.rows = {{std::string("fcfs"), 12.5}, {std::string("lpt"), std::nan("")}};
  findings.tables = {table, table};
  report::Chart chart;
  chart.title = "A chart";
  chart.x.label = "step";
  chart.y = {"load", "tokens", false, {}, {}, {}};
  chart.series = {{"one", {1, 2, 3}, {4, 5, std::nan("")}}};
  findings.charts = {chart};
  return findings;
}

TEST(OutputTest, FilesAreCompleteAndAgree) {
  const std::string folder = ::testing::TempDir() + "/findings/deep";
  std::filesystem::remove_all(folder);
  const auto paths = WriteFindings(SomeFindings(), folder);
  ASSERT_TRUE(paths.ok()) << paths.status();
  ASSERT_EQ(paths->size(), 4u);
  const auto read = [&](const std::string& name) {
    std::ifstream in(folder + "/" + name);
    std::stringstream text;
    text << in.rdbuf();
    return text.str();
  };
  EXPECT_EQ(read("sample.csv"), "policy,imbalance [tokens]\nfcfs,12.5\nlpt,\n");
  EXPECT_EQ(read("sample_2.csv"), read("sample.csv"));
  const auto json = nlohmann::json::parse(read("sample.json"));
  EXPECT_EQ(json["tables"][0]["rows"][0][1], 12.5);
  EXPECT_TRUE(json["tables"][0]["rows"][1][1].is_null());
  EXPECT_TRUE(json["charts"][0]["series"][0]["y"][2].is_null());
  EXPECT_EQ(json["parameters"]["workers G"], "4");
  const std::string html = read("sample.html");
  EXPECT_THAT(html, HasSubstr("A &lt;sample&gt;"));
  EXPECT_THAT(html, HasSubstr("<svg"));
  EXPECT_THAT(html, Not(HasSubstr("nan")));
}

TEST(OutputTest, AFolderThatCannotBeMadeIsNamed) {
  const auto paths = WriteFindings(SomeFindings(), "/proc/nowhere/results");
  EXPECT_FALSE(paths.ok());
  EXPECT_THAT(paths.status().message(), HasSubstr("/proc/nowhere/results"));
}

TEST(OutputTest, TextTablesLineUp) {
  EXPECT_EQ(TableText(SomeFindings().tables[0]),
            "Numbers\npolicy  imbalance [tokens]\nfcfs                  12.5\nlpt\n");
}

TEST(RegistryTest, NamesAreUniqueAndSummariesSayThings) {
  std::vector<std::string> names;
  for (const ExperimentInfo& experiment : Experiments()) {
    names.emplace_back(experiment.name);
    EXPECT_STRNE(experiment.summary, "");
    EXPECT_STRNE(experiment.title, "");
    EXPECT_NE(experiment.run, nullptr);
  }
  std::sort(names.begin(), names.end());
  EXPECT_EQ(std::unique(names.begin(), names.end()), names.end());
}

}  // namespace
}  // namespace bfio::sim
