// The dominance grid on a few cells that are small enough for a test.
#include <gmock/gmock.h>

#include <initializer_list>
#include <utility>
#include <vector>

#include "nlohmann/json.hpp"
#include "tools/sim/dominance/dominance.h"

namespace bfio::sim {
namespace {

using ::testing::ElementsAre;

DominanceOptions Corner() {
  DominanceOptions options;
  options.workloads.resize(2);
  options.workloads[0].name = "trace";
  options.workloads[0].trace = *SampleProfile("conversation", 500, 9);
  options.workloads[1].name = options.workloads[1].profile = "code";
  options.groups = {2, 4};
  options.loads = {40};
  options.depths = {1, 4};
  options.seeds = 2;
  options.candidate = "lpt";
  options.baselines = {"fcfs", "power_of_two", "lpt"};
  options.base.batch = 8;
  options.base.warmup = 20;
  options.base.steps = 60;
  return options;
}

Dominance RunAll(DominanceOptions options) {
  Dominance dominance = *Dominance::Create(std::move(options));
  EXPECT_TRUE(dominance.Run([](size_t) {}, [] { return true; }).ok());
  return dominance;
}

TEST(DominanceTest, EverySettingOfTheGridInOrder) {
  DominanceOptions options = Corner();
  options.threads = 3;
  Dominance dominance = *Dominance::Create(std::move(options));
  EXPECT_THAT(dominance.policies(), ElementsAre("lpt", "fcfs", "power_of_two"));
  ASSERT_EQ(dominance.settings().size(), 2u * 2u * 3u);
  for (const size_t i : {0, 1, 2}) EXPECT_EQ(dominance.settings()[i].mode, i < 1 ? "arrivals" : "overload");
  size_t next = 0;
  const auto done = [&](size_t index) {
    EXPECT_EQ(index, next++);
    for (const auto& seeds : dominance.settings()[index].runs)
      for (const RunMeasurements& run : seeds) EXPECT_GT(run.step_s_mean, 0);
  };
  EXPECT_EQ(dominance.Run(done, [] { return false; }).code(), absl::StatusCode::kCancelled);
  next = 0;
  EXPECT_TRUE(dominance.Run(done, [] { return true; }).ok());
  EXPECT_EQ(next, 12u);
  const auto& seeds = dominance.settings()[0].runs[0];
  EXPECT_NE(seeds[0].step_s_mean, seeds[1].step_s_mean) << "two seeds";
  EXPECT_EQ(dominance.Json().dump(), RunAll(Corner()).Json().dump()) << "of one thread";
}

TEST(DominanceTest, RevealIsTheDepthInMeanFreeSlotsAndAtLeastOne) {
  DominanceOptions options = Corner();
  options.workloads.resize(1);
  // Two and four workers of 8 slots, every request active for four steps: 4 and 8 slots become free per step.
  for (TraceRequest& request : options.workloads[0].trace.requests) request.output_tokens = 4;
  options.loads = {};
  options.depths = {0.1, 1, 4};
  options.seeds = 1;
  const auto dominance = Dominance::Create(std::move(options));
  std::vector<int64_t> reveals;
  for (const DominanceSetting& setting : dominance->settings())
    reveals.push_back(dominance->RevealOf(setting, 1));
  EXPECT_THAT(reveals, ElementsAre(1, 4, 16, 1, 8, 32));
}

TEST(DominanceTest, StructuredWorkloadsRun) {
  DominanceOptions options = Corner();
  options.workloads = StructuredWorkloads();
  ASSERT_EQ(options.workloads.size(), 5u);
  options.groups = {2};
  options.depths = {4};
  options.seeds = 1;
  options.base.steps = 300;
  const Dominance dominance = RunAll(std::move(options));
  const auto fcfs = [&](size_t cell) { return dominance.settings()[cell].runs[1][0]; };
  EXPECT_EQ(fcfs(2).idle_fraction, fcfs(4).idle_fraction)
      << "with slots for all neither classes nor tenants matter";
  EXPECT_NE(fcfs(0).idle_fraction, fcfs(2).idle_fraction) << "bursts do";
  // KV binds before slots do, so requests wait longer.
  EXPECT_GT(fcfs(9).wait_steps_p99, fcfs(7).wait_steps_p99);
}

TEST(DominanceTest, BelowSaturationTenMeanOutputsAreCounted) {
  DominanceOptions options = Corner();
  for (TraceRequest& request : options.workloads[0].trace.requests) request.output_tokens = 100;
  options.workloads.resize(1);
  options.groups = {2};
  options.loads = {72, 144};
  options.depths = {4};
  options.seeds = 1;
  const Dominance dominance = RunAll(std::move(options));
  for (const size_t cell : {0, 1}) EXPECT_EQ(dominance.settings()[cell].runs[0][0].steps, 1000) << cell;
  EXPECT_EQ(dominance.settings()[2].runs[0][0].steps, 60) << "a pool that is always full has nothing to fill";
}

TEST(DominanceTest, AFairBaselineWaitsAtMostAFifthLongerThanFcfs) {
  // The candidate, fcfs and two others.
  const auto best = [](const std::vector<double>& step_s, const std::vector<int64_t>& wait_p99) {
    std::vector<RunMeasurements> runs;
    for (size_t i = 0; i < step_s.size(); ++i)
      runs.push_back({.step_s_mean = step_s[i], .wait_steps_p99 = wait_p99[i]});
    const Rivals rivals = BestOf(runs, 1);
    return std::pair(rivals.best, rivals.best_fair);
  };
  EXPECT_EQ(best({1.0, 1.2, 1.1, 0.9}, {10, 10, 12, 13}), std::pair(size_t{3}, size_t{2}));
  EXPECT_EQ(best({1.0, 1.2, 1.1, 0.9}, {10, 10, 13, 12}), std::pair(size_t{3}, size_t{3}));
  EXPECT_EQ(best({1.0, 1.2, 1.1, 0.9}, {0, 0, 1, 1}), std::pair(size_t{3}, size_t{1}))
      << "under FCFS no request waits, so a wait of one step is longer";
}

// fcfs is worse than lpt on every seed, by far more than the spread between seeds.
TEST(DominanceTest, ALossIsStatedBesideTheSpreadOfSeeds) {
  DominanceOptions options = Corner();
  options.workloads.resize(1);
  options.groups = {16};
  options.loads = {};
  options.depths = {4};
  options.seeds = 3;
  options.candidate = "fcfs";
  options.baselines = {"lpt"};
  options.base.batch = 72;
  options.base.warmup = 500;
  options.base.steps = 1000;
  const Dominance dominance = RunAll(std::move(options));
  const nlohmann::ordered_json settings = dominance.Json().at("settings");
  ASSERT_EQ(settings.size(), 1u);
  const nlohmann::ordered_json& setting = settings.at(0);
  EXPECT_EQ(setting.at("best_fair"), "lpt");
  EXPECT_GT(setting.at("fair_step_loss"), setting.at("fair_step_loss_within_95"));
  EXPECT_EQ(setting.at("wait_steps_p99"), setting.at("fcfs_wait_steps_p99"));
  EXPECT_EQ(setting.at("runs").at(1).at("policy"), "lpt");
}

TEST(DominanceTest, BadListsAreRefused) {
  using Change = void (*)(DominanceOptions&);
  const auto code = [](Change change) {
    DominanceOptions options = Corner();
    change(options);
    return Dominance::Create(std::move(options)).status().code();
  };
  for (const Change change :
       std::initializer_list<Change>{[](auto& o) { o.workloads.clear(); }, [](auto& o) { o.groups.clear(); },
                                     [](auto& o) { o.candidate = "best"; },
                                     [](auto& o) { o.candidate = "fcfs", o.baselines = {"fcfs"}; }}) {
    EXPECT_EQ(code(change), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(code([](auto& o) { o.workloads[1].profile = "poetry"; }), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace bfio::sim
