// The figures of the BF-IO paper, on groups small enough for a test: what their tables and charts must
// satisfy.
#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "common/workload/synthetic.h"
#include "common/workload/trace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/testing/experiment_run.h"
#include "tools/sim/experiment/experiments.h"
#include "tools/sim/experiment/output.h"
#include "tools/sim/experiment/rule.h"
#include "tools/sim/experiment/runner.h"
#include "tools/sim/experiment/samples.h"
#include "tools/sim/run/simulation.h"

namespace bfio::sim {
namespace {

using ::testing::DoubleNear;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

Workload Geometric(double p, int64_t requests = 2000) {
  return {"geometric", std::make_shared<const Trace>(UniformPromptsGeometricOutputs(1, 100, p, requests, 7))};
}

// Short enough that every experiment is at its least number of steps or requests.
ExperimentContext Small() {
  ExperimentContext context;
  context.base.workers = 4;
  context.workers_given = true;
  context.base.batch = 6;
  context.base.reveal = 12;
  context.seeds = 1;
  context.shorten = 1e6;
  context.workloads = {Geometric(0.1)};
  return context;
}

size_t ColumnOf(const report::Table& table, const std::string& name) {
  for (size_t i = 0; i < table.columns.size(); ++i) {
    if (table.columns[i].name == name) return i;
  }
  ADD_FAILURE() << table.title << " has no column " << name;
  return 0;
}

double Number(const report::Table& table, size_t row, const std::string& column) {
  return std::get<double>(table.rows[row][ColumnOf(table, column)]);
}

// The same requests without any experiment around them.
RunJson PlainRun(const ExperimentContext& context, const Rule& rule, int64_t rows,
                 const std::function<void(SimOptions&)>& set) {
  SimOptions options = WithRule(context.base, rule);
  options.seed = 1;
  set(options);
  const Trace trace = DrawWithReplacement(*context.workloads[0].trace, rows, 1);
  return *(*Simulation::Create(options, trace))->Run();
}

double MeanOf(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

TEST(SamplesTest, QuantilesLieBetweenTheSamplesAroundTheirRank) {
  EXPECT_EQ(QuantileOf({3, 1, 2}, 0.5), 2);
  EXPECT_EQ(QuantileOf({4, 1, 2, 3}, 0.5), 2.5);
  EXPECT_EQ(QuantileOf({4, 1, 2, 3}, 0), 1);
  EXPECT_EQ(QuantileOf({4, 1, 2, 3}, 1), 4);
  EXPECT_DOUBLE_EQ(QuantileOf({0, 10}, 0.25), 2.5);
  EXPECT_TRUE(std::isnan(QuantileOf({}, 0.5)));
}

TEST(SamplesTest, MovingMeansBeginWhenTheWindowIsFull) {
  EXPECT_THAT(MovingMean({1, 2, 3, 6}, 2), ElementsAre(1.5, 2.5, 4.5));
  EXPECT_THAT(MovingMean({1, 2}, 3), IsEmpty());
  EXPECT_THAT(EveryNth({1, 2, 3, 4, 5}, 2), ElementsAre(1, 3, 5));
}

TEST(RuleTest, PoliciesAskedForReplaceTheExperimentsOwnAndKeepTheirSettings) {
  ExperimentContext context = Small();
  EXPECT_EQ(RulesOr(context, {PaperBfIo(20)})[0].name, "BF-IO H=20");
  context.policies = {"lpt"};
  context.base.horizon = 3;
  context.base.lookahead = "survival";
  const std::vector<Rule> rules = RulesOr(context, {PaperBfIo(20)});
  ASSERT_THAT(rules, SizeIs(1));
  const SimOptions options = WithRule(context.base, rules[0]);
  EXPECT_EQ(options.policy, "lpt");
  EXPECT_EQ(options.horizon, 3);
  EXPECT_EQ(options.lookahead, "survival");
}

TEST(Fig1Test, IdleSharesAreThoseOfThePlainRun) {
  const ExperimentContext context = Small();
  const Findings findings = RunWith(Fig1, context);
  ASSERT_THAT(findings.tables, SizeIs(2));
  const report::Table& table = findings.tables[0];
  ASSERT_THAT(table.rows, SizeIs(2));
  const Rule rules[] = {{"FCFS", "fcfs"}, {"bf_io_auto", "bf_io_auto"}};
  const report::Chart& trace = findings.charts[1];
  for (size_t i = 0; i < 2; ++i) {
    const RunJson plain = PlainRun(context, rules[i], 2000, [](SimOptions& options) {
      options.warmup = 20;
      options.steps = 60;
    });
    const double idle = 100 * plain.at("idle_fraction").get<double>();
    EXPECT_NEAR(Number(table, i, "mean"), idle, 1e-9);
    ASSERT_THAT(trace.series[i].y, SizeIs(60));
    EXPECT_NEAR(MeanOf(trace.series[i].y), idle, 1e-9);
    EXPECT_THAT(trace.series[i].y, Each(::testing::AllOf(::testing::Ge(0), ::testing::Lt(75))))
        << "one of four workers is the heaviest";
    EXPECT_LE(Number(table, i, "5 % of steps below"), Number(table, i, "median"));
    EXPECT_LE(Number(table, i, "median"), Number(table, i, "5 % above"));
    EXPECT_LT(Number(table, i, "barrier wait"), idle) << "the fixed part of a step idles nobody";
  }
  EXPECT_LT(Number(table, 1, "mean"), Number(table, 0, "mean"));
}

TEST(Fig1Test, HistogramsAndCumulativeCurvesHoldEveryStep) {
  ExperimentContext context = Small();
  context.seeds = 3;
  const Findings findings = RunWith(Fig1, context);
  const report::Chart& histogram = findings.charts[findings.charts.size() - 2];
  const report::Chart& cumulative = findings.charts.back();
  for (const report::Series& series : histogram.series) {
    EXPECT_NEAR(std::accumulate(series.y.begin(), series.y.end(), 0.0), 100, 1e-9);
  }
  for (const report::Series& series : cumulative.series) {
    EXPECT_TRUE(std::is_sorted(series.x.begin(), series.x.end()));
    EXPECT_TRUE(std::is_sorted(series.y.begin(), series.y.end()));
    EXPECT_EQ(series.y.back(), 100);
  }
}

TEST(Fig1Test, FewerSlotsIdleMoreUnderFcfsAndTheFullBatchIsTheRowAbove) {
  const Findings findings = RunWith(Fig1, Small());
  const report::Table& fewer = findings.tables[1];
  ASSERT_THAT(fewer.rows, SizeIs(3)) << "6, 3 and 1 slots; an eighth of 6 is none";
  EXPECT_EQ(std::get<int64_t>(fewer.rows[2][1]), 1);
  EXPECT_EQ(Number(fewer, 0, "mean idle share"), Number(findings.tables[0], 0, "mean"));
  EXPECT_GT(Number(fewer, 2, "mean idle share"), Number(fewer, 0, "mean idle share"));
}

TEST(Fig1Test, ThirtyTwoWorkersUnlessAskedOtherwise) {
  ExperimentContext context = Small();
  context.workers_given = false;
  context.policies = {"fcfs"};
  const Findings findings = RunWith(Fig1, context);
  EXPECT_EQ(findings.parameters[0].second, "32");
  EXPECT_EQ(findings.charts[0].series.size(), 32u + 2);
  EXPECT_EQ(RunWith(Fig1, Small()).charts[0].series.size(), 4u + 2);
}

TEST(Fig4Test, TheFirstRowIsThePlainRunWithoutLookahead) {
  const ExperimentContext context = Small();
  const Findings findings = RunWith(Fig4, context);
  const report::Table& table = findings.tables[0];
  ASSERT_THAT(table.rows, SizeIs(13 + 7 + 9 + 3));
  const RunJson plain = PlainRun(context, PaperBfIo(0), 400, [](SimOptions& options) {
    options.warmup = options.steps = 0;
    options.requests = 400;
  });
  EXPECT_NEAR(Number(table, 0, "imbalance"), 1e-4 * plain.at("avg_imbalance_tokens").get<double>(), 1e-12);
  EXPECT_NEAR(Number(table, 0, "imbalance, paper"), 2.92, 1e-12);
  EXPECT_TRUE(std::isnan(Number(table, 1, "imbalance, paper"))) << "the paper prints no figure for H = 1";
  // Weights of later steps do not matter where there are none.
  EXPECT_EQ(Number(table, 13, "imbalance"), Number(table, 0, "imbalance"));
  EXPECT_NE(Number(table, 14, "imbalance"), Number(table, 13, "imbalance"));
  // The charts show what the table says, as far as they go.
  const report::Series& curve = findings.charts[0].series[0];
  ASSERT_THAT(curve.x, SizeIs(13));
  EXPECT_EQ(curve.x.back(), 500);
  EXPECT_EQ(curve.y[5], Number(table, 5, "imbalance"));
  EXPECT_EQ(findings.charts[1].series[0].x.back(), 40);
}

TEST(Fig5Test, GeometricLengthsAreRecovered) {
  ExperimentContext context = Small();
  context.workloads = {Geometric(0.02, 50'000), Geometric(0.3, 50'000)};
  const Findings findings = RunWith(Fig5, context);
  const report::Table& table = findings.tables[0];
  ASSERT_THAT(table.rows, SizeIs(2));
  const double p[] = {0.02, 0.3};
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_NEAR(Number(table, i, "p of the fit"), 1000 * p[i], 0.02 * 1000 * p[i]);
    EXPECT_LT(Number(table, i, "distance"), 0.01);
    EXPECT_NEAR(Number(table, i, "slope of the fit"), 1000 * std::log(1 - p[i]),
                -0.03 * 1000 * std::log(1 - p[i]));
    EXPECT_NEAR(Number(table, i, "measured slope"), Number(table, i, "slope of the fit"),
                -0.05 * Number(table, i, "slope of the fit"));
    EXPECT_NEAR(Number(table, i, "coefficient of variation"), Number(table, i, "of the fit"), 0.02);
  }
  EXPECT_THAT(findings.charts, SizeIs(1 + 2 * 2));
}

TEST(Fig5Test, EqualLengthsAreFarFromGeometric) {
  ExperimentContext context = Small();
  context.workloads = {
      {"constant", std::make_shared<const Trace>(UniformPromptsConstantOutputs(1, 9, 20, 1000, 1))}};
  const Findings findings = RunWith(Fig5, context);
  const report::Table& table = findings.tables[0];
  EXPECT_NEAR(Number(table, 0, "distance"), 1 - std::pow(0.95, 19), 1e-12);
  EXPECT_EQ(std::get<int64_t>(table.rows[0][ColumnOf(table, "largest at")]), 19);
  EXPECT_EQ(std::get<int64_t>(table.rows[0][ColumnOf(table, "most common")]), 20);
  EXPECT_EQ(Number(table, 0, "its share"), 100);
}

TEST(Fig6Test, EveryWorkerLiesUnderTheHeaviestAndTheMeanIsTheirMean) {
  const Findings findings = RunWith(Fig6, Small());
  ASSERT_THAT(findings.charts, SizeIs(6 + 1));
  const report::Chart& gaps = findings.charts.back();
  for (size_t policy = 0; policy < 6; ++policy) {
    const report::Chart& chart = findings.charts[policy];
    ASSERT_THAT(chart.series, SizeIs(4 + 2));
    const report::Series &heaviest = chart.series[4], &mean = chart.series[5];
    ASSERT_THAT(heaviest.y, SizeIs(160));
    for (size_t k = 0; k < heaviest.y.size(); ++k) {
      std::vector<double> loads;
      for (size_t g = 0; g < 4; ++g) loads.push_back(chart.series[g].y[k]);
      EXPECT_EQ(*std::max_element(loads.begin(), loads.end()), heaviest.y[k]);
      EXPECT_NEAR(MeanOf(loads), mean.y[k], 1e-9);
      const double gap = heaviest.y[k] - *std::min_element(loads.begin(), loads.end());
      EXPECT_NEAR(gaps.series[policy].y[k], gap, 1e-9);
    }
  }
}

TEST(Fig6Test, TheTableLeavesTheSettlingOutAndAgreesWithTheChart) {
  const ExperimentContext context = Small();
  const Findings findings = RunWith(Fig6, context);
  const report::Table& table = findings.tables[0];
  ASSERT_THAT(table.rows, SizeIs(6));
  const RunJson plain = PlainRun(context, {"FCFS", "fcfs"}, 2000, [](SimOptions& options) {
    options.warmup = 40;
    options.steps = 120;
  });
  EXPECT_NEAR(Number(table, 0, "imbalance"), 1e-4 * plain.at("avg_imbalance_tokens").get<double>(), 1e-12);
  for (size_t policy = 0; policy < 6; ++policy) {
    EXPECT_LT(Number(table, policy, "lightest"), Number(table, policy, "mean load"));
    EXPECT_LT(Number(table, policy, "mean load"), Number(table, policy, "heaviest"));
    EXPECT_LE(Number(table, policy, "least"), Number(table, policy, "lightest"));
    EXPECT_GE(Number(table, policy, "most"), Number(table, policy, "heaviest"));
    const std::vector<double>& heaviest = findings.charts[policy].series[4].y;
    EXPECT_NEAR(MeanOf({heaviest.begin() + 40, heaviest.end()}), Number(table, policy, "heaviest"), 1e-9);
  }
}

// Rows of fig7's energy tables: power law, then policy.
constexpr const char* kEnergies[] = {"energy_j", "energy_by_mfu_j", "energy_by_wait_j"};

TEST(Fig7Test, EnergiesAreThoseOfThePlainRun) {
  const ExperimentContext context = Small();
  const Findings findings = RunWith(Fig7, context);
  ASSERT_THAT(findings.tables, SizeIs(4));
  const Rule rules[] = {{"FCFS", "fcfs"}, PaperBfIo(20), {"bf_io_auto", "bf_io_auto"}};
  for (const bool whole : {false, true}) {
    const report::Table& table = findings.tables[whole ? 1 : 0];
    ASSERT_THAT(table.rows, SizeIs(9));
    for (size_t i = 0; i < 3; ++i) {
      const RunJson plain = PlainRun(context, rules[i], 1000, [whole](SimOptions& options) {
        options.warmup = options.steps = 0;
        options.requests = 1000;
        options.count_drain = whole;
      });
      for (size_t law = 0; law < 3; ++law) {
        EXPECT_NEAR(Number(table, 3 * law + i, "energy"), 1e-3 * plain.at(kEnergies[law]).get<double>(),
                    1e-12);
      }
    }
  }
}

TEST(Fig7Test, AllPoliciesDoTheSameWork) {
  const ExperimentContext context = Small();
  const Findings findings = RunWith(Fig7, context);
  const Trace drawn = DrawWithReplacement(*context.workloads[0].trace, 1000, 1);
  int64_t tokens = 0;
  for (const TraceRequest& request : drawn.requests) tokens += request.output_tokens;
  const report::Table& work = findings.tables[2];
  ASSERT_THAT(work.rows, SizeIs(3));
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_NEAR(Number(work, i, "all tokens"), 1e-6 * static_cast<double>(tokens), 1e-12);
    EXPECT_LT(Number(work, i, "tokens"), Number(work, i, "all tokens"));
    EXPECT_LT(Number(work, i, "until the pool is empty"), Number(work, i, "the whole work"));
  }
}

TEST(Fig7Test, PowerOverTimeIsTheEnergy) {
  const Findings findings = RunWith(Fig7, Small());
  const report::Table &energy = findings.tables[0], &work = findings.tables[2];
  for (size_t i = 0; i < 3; ++i) {
    for (size_t row : {i, 3 + i, 6 + i}) {
      const double joules = Number(energy, row, "power") * 4 * Number(work, i, "until the pool is empty");
      EXPECT_NEAR(joules, 1000 * Number(energy, row, "energy"), 1e-6);
      EXPECT_LE(Number(energy, row, "from"), Number(energy, row, "to"));
    }
    // Between idle and peak power.
    EXPECT_THAT(findings.charts[0].series[i].y, Each(DoubleNear(250, 150.000001)));
    EXPECT_TRUE(std::is_sorted(findings.charts[0].series[i].x.begin(), findings.charts[0].series[i].x.end()));
  }
}

TEST(Fig7Test, UtilisationOfEachWorkerIsAShareAndIsHigherWhenBalanced) {
  const Findings findings = RunWith(Fig7, Small());
  const report::Table& table = findings.tables[3];
  ASSERT_THAT(table.rows, SizeIs(4));
  double fcfs = 0, balanced = 0;
  for (size_t g = 0; g < 4; ++g) {
    for (const std::string policy : {"FCFS", "BF-IO H=20", "bf_io_auto"}) {
      const double load = Number(table, g, policy + ", load"), work = Number(table, g, policy + ", at work");
      EXPECT_GT(load, 0);
      EXPECT_LE(load, work) << "the fixed part of a step is work too";
      EXPECT_LE(work, 100);
    }
    fcfs += Number(table, g, "FCFS, load");
    balanced += Number(table, g, "bf_io_auto, load");
  }
  EXPECT_GT(balanced, fcfs);
}

TEST(FiguresTest, OneThreadAndTwoGiveTheSame) {
  ExperimentContext context = Small();
  context.seeds = 2;
  for (const Experiment experiment : {Fig1, Fig5, Fig6, Fig7}) {
    const std::string one = FindingsJson(RunWith(experiment, context, 1)).dump();
    EXPECT_EQ(one, FindingsJson(RunWith(experiment, context, 2)).dump());
  }
  // Two seeds of it take long.
  context.seeds = 1;
  EXPECT_EQ(FindingsJson(RunWith(Fig4, context, 1)).dump(), FindingsJson(RunWith(Fig4, context, 2)).dump());
}

TEST(FiguresTest, EachStatesItsSeedsAndItsWorkload) {
  const auto states = [](const Findings& findings, const std::string& name) {
    return std::any_of(findings.parameters.begin(), findings.parameters.end(),
                       [&](const auto& parameter) { return parameter.first == name; });
  };
  for (const Experiment experiment : {Fig1, Fig6, Fig7}) {
    const Findings findings = RunWith(experiment, Small());
    EXPECT_TRUE(states(findings, "seeds"));
    EXPECT_TRUE(states(findings, "workload"));
    EXPECT_TRUE(states(findings, "reveal target R"));
    for (const report::Chart& chart : findings.charts) {
      EXPECT_FALSE(chart.x.label.empty());
      EXPECT_FALSE(chart.y.label.empty());
      EXPECT_FALSE(chart.y.unit.empty()) << chart.title;
    }
  }
}

}  // namespace
}  // namespace bfio::sim
