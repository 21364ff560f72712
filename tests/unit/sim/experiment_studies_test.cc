// The studies (scaling, regimes, staleness, predictors, speedup-bound), on groups small enough for a test:
// what their tables and charts must satisfy.
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "common/workload/synthetic.h"
#include "common/workload/trace.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/testing/experiment_run.h"
#include "tools/sim/experiment/arrivals.h"
#include "tools/sim/experiment/columns.h"
#include "tools/sim/experiment/experiments.h"
#include "tools/sim/experiment/output.h"
#include "tools/sim/experiment/overload_watch.h"
#include "tools/sim/experiment/runner.h"
#include "tools/sim/run/simulation.h"
#include "tools/sim/run/workload.h"

namespace bfio::sim {
namespace {

// 4 workers of 6 slots, prompts 1 .. 100, outputs of 10 tokens on average.
ExperimentContext Small(int64_t steps) {
  ExperimentContext context;
  context.base.workers = 4;
  context.base.batch = 6;
  context.base.reveal = 12;
  context.base.warmup = 20;
  context.base.steps = steps;
  context.seeds = 1;
  context.workloads = {
      {"geometric", std::make_shared<const Trace>(UniformPromptsGeometricOutputs(1, 100, 0.1, 3000, 7))}};
  return context;
}

// Rows of a table by what their first cells say.
class Rows {
 public:
  explicit Rows(const report::Table& table) : table_(table) {}

  size_t ColumnOf(const std::string& name) const {
    for (size_t i = 0; i < table_.columns.size(); ++i) {
      if (table_.columns[i].name == name) return i;
    }
    ADD_FAILURE() << table_.title << " has no column " << name;
    return 0;
  }

  const std::vector<report::Cell>& Row(const std::vector<report::Cell>& first) const {
    for (const auto& row : table_.rows) {
      if (std::equal(first.begin(), first.end(), row.begin())) return row;
    }
    ADD_FAILURE() << table_.title << " lacks a row";
    return table_.rows[0];
  }

  double At(const std::vector<report::Cell>& first, const std::string& column) const {
    return std::get<double>(Row(first)[ColumnOf(column)]);
  }

 private:
  const report::Table& table_;
};

const report::Table& TableNamed(const Findings& findings, const std::string& start) {
  for (const report::Table& table : findings.tables) {
    if (table.title.rfind(start, 0) == 0) return table;
  }
  ADD_FAILURE() << "no table begins with " << start;
  return findings.tables[0];
}

// The same run without any experiment around it.
RunJson PlainRun(const ExperimentContext& context, const std::function<void(SimOptions&)>& set) {
  SimOptions options = context.base;
  options.warmup = WarmUpOf(context, *context.workloads[0].trace);
  set(options);
  return *(*Simulation::Create(options, *context.workloads[0].trace))->Run();
}

TEST(StalenessTest, NoDelayIsThePlainRun) {
  const ExperimentContext context = Small(150);
  const Findings findings = RunWith(Staleness, context);
  const Rows rows(TableNamed(findings, "Late reports: overload"));
  for (const std::string policy : {"fcfs", "lpt", "bf_io", "bf_io_auto"}) {
    const RunJson plain = PlainRun(context, [&](SimOptions& options) { options.policy = policy; });
    const std::vector<report::Cell> row = {policy, int64_t{0}};
    EXPECT_DOUBLE_EQ(rows.At(row, "imbalance"), plain.at("avg_imbalance_tokens").get<double>() * 1e-4);
    EXPECT_DOUBLE_EQ(rows.At(row, "throughput"), plain.at("throughput_tokens_per_s").get<double>() * 1e-4);
    EXPECT_EQ(rows.At(row, "throughput change"), 0);
    EXPECT_EQ(rows.At(row, "slots taken"), 100);
  }
}

TEST(StalenessTest, SlotsStandEmptyUntilSomebodyHasHeardOfThem) {
  const Findings findings = RunWith(Staleness, Small(1500));
  const Rows rows(TableNamed(findings, "Late reports: overload"));
  for (const std::string way : {"fcfs", "fcfs, pipelined", "bf_io_auto", "bf_io_auto, pipelined"}) {
    for (int64_t delay : {1, 2, 4, 8, 16}) {
      const std::vector<report::Cell> row = {way, delay};
      EXPECT_NEAR(rows.At(row, "slots taken") / rows.At(row, "slots taken, expected"), 1, 0.05)
          << way << delay;
      EXPECT_LT(rows.At(row, "throughput change"), 0) << way << delay;
    }
  }
}

TEST(StalenessTest, RoundRobinLooksAtNoReportAndLosesNothing) {
  const Findings findings = RunWith(Staleness, Small(300));
  const Rows rows(TableNamed(findings, "Late reports: 70 % load"));
  for (int64_t delay : {0, 1, 8, 32}) {
    EXPECT_EQ(rows.At({"round_robin, instant", delay}, "imbalance"),
              rows.At({"round_robin, instant", int64_t{0}}, "imbalance"));
  }
  EXPECT_GT(rows.At({"least_tokens, instant", int64_t{32}}, "imbalance"),
            rows.At({"least_tokens, instant", int64_t{0}}, "imbalance"))
      << "stale loads mislead those that look";
}

TEST(PredictorsTest, ErrorsOfNoneAreTheOracle) {
  const ExperimentContext context = Small(150);
  const Findings findings = RunWith(PredictorWorth, context);
  const Rows rows(TableNamed(findings, "Rules and predictors: every slot taken"));
  const auto plain = [&](double error) {
    return PlainRun(context,
                    [error](SimOptions& options) {
                      options.policy = "bf_io";
                      options.objective = "paper";
                      options.horizon = 10;
                      options.discount = 0.7;
                      options.lookahead = "oracle";
                      options.prediction_error = error;
                    })
               .at("avg_imbalance_tokens")
               .get<double>() *
           1e-4;
  };
  const std::string rule = "paper H=10, weights 0.7^h";
  EXPECT_DOUBLE_EQ(rows.At({rule, "oracle"}, "imbalance"), plain(0));
  EXPECT_DOUBLE_EQ(rows.At({rule, "oracle +-50 %"}, "imbalance"), plain(0.5));
  EXPECT_NE(rows.At({rule, "oracle"}, "imbalance"), rows.At({rule, "oracle +-100 %"}, "imbalance"));
}

TEST(PredictorsTest, EveryRuleMeetsEveryPredictorAndTheLineIsItsOwnMeasure) {
  const Findings findings = RunWith(PredictorWorth, Small(60));
  const report::Table& table = TableNamed(findings, "Rules and predictors: every slot taken");
  EXPECT_EQ(table.rows.size(), 5 + 8 * 11);
  EXPECT_EQ(TableNamed(findings, "Rules and predictors: 70 %").rows.size(), 5 + 3 * 11);
  const Rows rows(table);
  EXPECT_EQ(rows.At({"bf_io_auto", "none"}, "imbalance against the line"), 1);
  EXPECT_GT(rows.At({"fcfs", "none"}, "imbalance against the line"), 1);
  EXPECT_EQ(TableNamed(findings, "What a prediction must be worth: every").rows.size(), 8);
}

TEST(RegimesTest, ThroughputIsWhatComesUntilTheGroupIsFull) {
  ExperimentContext context = Small(3000);
  context.policies = {"fcfs", "least_tokens"};
  const Findings findings = RunWith(Regimes, context);
  const report::Table& table = TableNamed(findings, "All loads and policies");
  EXPECT_EQ(table.rows.size(), 11 * 3) << "least_tokens from a pool and instantly";
  const Rows rows(table);
  const Trace& trace = *context.workloads[0].trace;
  const double full = FullSlotRequestRate(trace, 4, 6, context.base.cost) * MeanOutputTokens(trace) * 1e-4;
  // At 10 % a group so small is empty now and then, and no step is made then.
  for (const int share : {25, 40, 55, 70}) {
    const std::string load = std::to_string(share) + " %";
    for (const char* dispatch : {"pool", "instant"}) {
      EXPECT_NEAR(rows.At({load, "least_tokens", dispatch}, "throughput") / full, 0.01 * share, 0.001 * share)
          << load << dispatch;
    }
  }
  EXPECT_EQ(rows.At({"overload", "fcfs", "pool"}, "slots taken"), 100);
  EXPECT_LT(rows.At({"55 %", "fcfs", "pool"}, "slots taken"), 75);
  EXPECT_GT(rows.At({"110 %", "fcfs", "pool"}, "TTFT p99"),
            2 * rows.At({"55 %", "fcfs", "pool"}, "TTFT p99"));
  EXPECT_GE(rows.At({"95 %", "least_tokens", "instant"}, "TTFT p99"),
            rows.At({"95 %", "least_tokens", "pool"}, "TTFT p99"))
      << "one waits while another's slot is free";
}

TEST(SpeedupBoundTest, SharesLieBetweenFcfsAndPerfectBalance) {
  const Findings findings = RunWith(SpeedupBound, Small(400));
  const report::Table& table = TableNamed(findings, "Steps beside perfect balance");
  const Rows rows(table);
  for (const auto& row : table.rows) {
    EXPECT_LE(std::get<double>(row[rows.ColumnOf("share of the gain")]), 100);
    EXPECT_GE(std::get<double>(row[rows.ColumnOf("excess")]), 0);
  }
  EXPECT_EQ(rows.At({"equal", "fcfs"}, "share of the gain"), 0);
  EXPECT_GT(rows.At({"equal", "bf_io_auto"}, "share of the gain"), 0);
  EXPECT_EQ(rows.At({"equal", "fcfs"}, "attainable"), 100);
  EXPECT_LT(rows.At({"jitter 0.05", "fcfs"}, "attainable"), 100);
  EXPECT_LT(rows.At({"jitter 0.05", "bf_io_auto"}, "share of the gain"),
            rows.At({"jitter 0.05", "fcfs"}, "attainable") + 5);
}

TEST(SpeedupBoundTest, SpeedsToldBeatSpeedsNotTold) {
  const Findings findings = RunWith(SpeedupBound, Small(400));
  const Rows rows(TableNamed(findings, "Steps beside perfect balance"));
  for (const char* policy : {"bf_io square", "bf_io_auto"}) {
    EXPECT_LT(rows.At({"speeds 1, 1, 0.7, told", policy}, "excess"),
              rows.At({"speeds 1, 1, 0.7, not told", policy}, "excess"))
        << policy;
  }
  EXPECT_EQ(rows.At({"speeds 1, 1, 0.7, told", "fcfs"}, "excess"),
            rows.At({"speeds 1, 1, 0.7, not told", "fcfs"}, "excess"))
      << "fcfs does not ask";
}

ExperimentContext SmallScaling() {
  ExperimentContext context = Small(0);
  context.shorten = 1e6;
  context.policies = {"bf_io"};
  context.base.objective = "paper";
  return context;
}

TEST(ScalingStudyTest, EveryCellHasAnImprovementOrNoImbalanceAtAll) {
  const Findings findings = RunWith(Scaling, SmallScaling());
  const report::Table& table = TableNamed(findings, "Improvement over FCFS");
  const Rows rows(table);
  // Over B: 5; over G at B = 6: 4 .. 64 without the one met already, 3 where loads drift.
  EXPECT_EQ(table.rows.size(), 2 * (5 + 5) + 4 * (5 + 3));
  for (const auto& row : table.rows) {
    const report::Cell& improvement = row[rows.ColumnOf("times less than FCFS")];
    if (const auto* text = std::get_if<std::string>(&improvement)) {
      EXPECT_EQ(*text, "infinite");
      EXPECT_EQ(std::get<double>(row[rows.ColumnOf("imbalance")]), 0);
    } else {
      EXPECT_GT(std::get<double>(improvement), 0);
    }
    EXPECT_LT(std::get<double>(row[rows.ColumnOf("imbalance")]),
              std::get<double>(row[rows.ColumnOf("upper bound")]));
  }
  const report::Table& fcfs = TableNamed(findings, "FCFS beside theory");
  for (const auto& row : fcfs.rows) {
    EXPECT_GT(std::get<double>(row[Rows(fcfs).ColumnOf("measured / bound")]), 1);
  }
}

TEST(OverloadWatchTest, ConditionHoldsInADeepPoolAndNotInAShallowOne) {
  const auto trace = std::make_shared<const Trace>(UniformPromptsGeometricOutputs(1, 100, 0.1, 3000, 7));
  for (const auto& [reveal, least, most] : {std::tuple(2, 0.0, 0.5), std::tuple(100, 1.0, 1.0)}) {
    SimOptions options;
    options.policy = "fcfs";
    options.workers = 4;
    options.batch = 6;
    options.reveal = reveal;
    options.warmup = 50;
    options.steps = 200;
    OverloadWatch watch(options, trace);
    ASSERT_TRUE(
        (*Simulation::Create(options, *trace))->Run({}, [&](const StepView& v) { watch.See(v); }).ok());
    EXPECT_GE(watch.share(), least) << reveal;
    EXPECT_LE(watch.share(), most) << reveal;
  }
}

TEST(ArrivalsTest, OwnTimesAreStretchedAndOthersArePoisson) {
  const ExperimentContext context = Small(100);
  Workload own = {"own", std::make_shared<const Trace>(WithPoissonArrivals(*context.workloads[0].trace, 3))};
  EXPECT_EQ(ArrivalsName(own), "its own times, stretched");
  EXPECT_EQ(ArrivalsName(context.workloads[0]), "Poisson");
  EXPECT_EQ(ArrivingBySeed(own)(1)->requests[5].arrival_s, own.trace->requests[5].arrival_s);
  EXPECT_TRUE(ArrivingBySeed(context.workloads[0])(1)->has_arrivals);
  EXPECT_NEAR(LoadForShare(*own.trace, context.base, 0.5) * ArrivalRate(*own.trace),
              LoadForShare(*context.workloads[0].trace, context.base, 0.5), 1e-9);
}

TEST(StudiesTest, OneThreadAndTwoFindTheSame) {
  for (const Experiment experiment : {Scaling, Regimes, Staleness, PredictorWorth, SpeedupBound}) {
    ExperimentContext context = experiment == Scaling ? SmallScaling() : Small(60);
    context.seeds = experiment == Scaling ? 1 : 2;
    const Findings one = RunWith(experiment, context, 1), two = RunWith(experiment, context, 2);
    EXPECT_EQ(FindingsJson(one), FindingsJson(two));
    EXPECT_FALSE(one.charts.empty());
    for (const report::Chart& chart : one.charts) {
      EXPECT_FALSE(chart.series.empty()) << chart.title;
      EXPECT_FALSE(chart.y.label.empty()) << chart.title;
      EXPECT_FALSE(chart.x.label.empty()) << chart.title;
    }
  }
}

}  // namespace
}  // namespace bfio::sim
