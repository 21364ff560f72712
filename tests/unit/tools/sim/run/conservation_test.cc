// Invariants of every simulator run, whatever its settings, checked request by request with independent
// accounts; and the workload of a run.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "common/base/rng.h"
#include "common/workload/trace.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tools/sim/rank/drift.h"
#include "tools/sim/run/simulation.h"
#include "tools/sim/run/statistics.h"
#include "tools/sim/run/workload.h"

namespace bfio::sim {
namespace {

// Follows every request through a run with explicit accounts, where the simulation uses closed sums.
class Books {
 public:
  Books(const SimOptions& options, const Trace& trace)
      : options_(options), trace_(trace), drift_(*Drift::Parse(options.drift, options.seed)) {}

  void Step(const StepView& view) {
    ASSERT_EQ(view.step, ++step_);
    ASSERT_EQ(view.begin_s, end_s_);
    const auto workers = static_cast<size_t>(options_.workers);
    std::vector<int64_t> prefill(workers), loads(workers), active(workers);
    for (const Started& started : view.started) {
      ASSERT_TRUE(seen_.insert(started.id).second) << "request " << started.id << " admitted twice";
      const TraceRequest& row = trace_.requests[(started.id - 1) % trace_.requests.size()];
      running_[started.id] = {started.worker, row.prompt_tokens, row.output_tokens};
      prefill[static_cast<size_t>(started.worker)] += row.prompt_tokens;
    }
    const int64_t grows = drift_.GrowthThrough(view.step) - drift_.GrowthThrough(view.step - 1);
    const int64_t makes = drift_.TokensThrough(view.step) - drift_.TokensThrough(view.step - 1);
    int64_t made = 0;
    for (auto& [id, request] : running_) {
      loads[static_cast<size_t>(request.worker)] += request.load;
      ++active[static_cast<size_t>(request.worker)];
      request.load += grows;
      made += std::min(makes, request.left);
      request.left -= std::min(makes, request.left);
    }
    ASSERT_EQ(view.tokens, made);
    tokens_ += made;
    double longest = 0;
    for (size_t g = 0; g < workers; ++g) {
      ASSERT_EQ(view.loads[g], loads[g]) << "step " << step_ << " worker " << g;
      ASSERT_EQ(view.active[g], active[g]);
      ASSERT_LE(active[g], options_.batch);
      ASSERT_TRUE(options_.kv_tokens == 0 || loads[g] <= options_.kv_tokens);
      const double speed = options_.speeds.empty() ? 1 : options_.speeds[g % options_.speeds.size()];
      const double local = options_.cost.StepSeconds(loads[g], prefill[g]) / speed;
      ASSERT_DOUBLE_EQ(view.local_s[g], local);
      longest = std::max(longest, local);
      for (const core::RequestId id : view.finished[g]) {
        const auto it = running_.find(id);
        ASSERT_TRUE(it != running_.end());
        ASSERT_EQ(it->second.worker, static_cast<core::WorkerIndex>(g));
        ASSERT_EQ(it->second.left, 0) << "request " << id << " ended with tokens left";
        running_.erase(it);
        ++finished_;
      }
    }
    ASSERT_DOUBLE_EQ(view.seconds, longest + options_.overhead_s);
    ASSERT_LE(view.balanced_s, view.seconds * (1 + 1e-12));
    for (const auto& [id, request] : running_) ASSERT_GT(request.left, 0) << "request " << id << " runs on";
    most_in_system_ = std::max(most_in_system_, view.waiting + view.residents);
    const int64_t max = *std::max_element(loads.begin(), loads.end());
    for (const int64_t load : loads) {
      // Without any load it idles.
      const double ratio = max == 0 ? 0 : static_cast<double>(load) / static_cast<double>(max);
      joules_ += (100 + 300 * std::pow(ratio, 0.7)) * view.seconds;
    }
    seconds_ += view.seconds;
    end_s_ = view.begin_s + view.seconds;
  }

  int32_t step_ = 0;
  double end_s_ = 0, seconds_ = 0, joules_ = 0;
  int64_t tokens_ = 0, finished_ = 0, most_in_system_ = 0;

 private:
  struct Running {
    core::WorkerIndex worker;
    int64_t load, left;
  };
  const SimOptions options_;
  const Trace& trace_;
  Drift drift_;
  std::map<core::RequestId, Running> running_;
  std::set<core::RequestId> seen_;
};

struct Setting {
  std::string name;
  SimOptions options;
};

std::vector<Setting> Settings() {
  std::vector<Setting> settings;
  const SimOptions base = {
      .reveal = 11, .warmup = 0, .steps = 0, .requests = 600, .count_drain = true, .workers = 5, .batch = 6};
  const auto add = [&](const std::string& name, const auto& change) {
    settings.push_back({name, base});
    change(settings.back().options);
  };
  for (const char* policy : {"bf_io_auto", "bf_io", "fcfs", "least_tokens", "power_of_two", "br0", "vllm"}) {
    add(std::string("overload_") + policy, [&](SimOptions& o) { o.policy = policy; });
    add(std::string("instant_") + policy, [&](SimOptions& o) { o.policy = policy, o.dispatch = "instant"; });
  }
  add("closed", [](SimOptions& o) { o.mode = "closed", o.concurrency = 40; });
  add("pipelined", [](SimOptions& o) { o.plan_mode = "pipelined"; });
  add("closed_pipelined_few",
      [](SimOptions& o) { o.plan_mode = "pipelined", o.mode = "closed", o.concurrency = 3; });
  for (const int32_t delay : {1, 2, 7}) {
    const std::string suffix = std::to_string(delay);
    add("delay_" + suffix, [&](SimOptions& o) { o.report_delay = delay; });
    add("delay_pipelined_" + suffix,
        [&](SimOptions& o) { o.report_delay = delay, o.plan_mode = "pipelined"; });
    add("delay_instant_" + suffix,
        [&](SimOptions& o) { o.report_delay = delay, o.dispatch = "instant", o.policy = "least_tokens"; });
  }
  add("kv", [](SimOptions& o) { o.kv_tokens = 2'500; });
  add("unequal", [](SimOptions& o) { o.speeds = {1, 0.5, 1.25}; });
  add("unequal_untold", [](SimOptions& o) { o.speeds = {1, 0.5}, o.tell_speeds = false; });
  add("prefill_overhead", [](SimOptions& o) { o.cost.prefill_s_per_token = 1e-5, o.overhead_s = 1e-3; });
  for (const char* lookahead : {"hint", "oracle"}) {
    add(lookahead, [&](SimOptions& o) {
      o.policy = "bf_io", o.objective = "paper", o.horizon = 4, o.lookahead = lookahead,
      o.prediction_error = 0.5;
    });
  }
  add("by_steps", [](SimOptions& o) { o.requests = 0, o.steps = 300; });
  int drifts = 0;
  for (const char* drift :
       {"constant", "throttled:0.4", "sequence:3,0,1", "speculative:2:0.5", "speculative:5:1"}) {
    add("drift_" + std::to_string(++drifts), [&](SimOptions& o) { o.policy = "fcfs", o.drift = drift; });
  }
  return settings;
}

class ConservationTest : public ::testing::TestWithParam<Setting> {};

Trace ShortRequests() {
  Trace trace = {.source = "short"};
  Rng rng(5);
  for (int i = 0; i < 400; ++i) {
    trace.requests.push_back(
        {0, 1 + static_cast<int64_t>(rng.Below(300)), 1 + static_cast<int64_t>(rng.Below(40))});
  }
  return trace;
}

TEST_P(ConservationTest, EveryRequestEveryTokenEverySecondIsAccountedFor) {
  const Trace trace = ShortRequests();
  const SimOptions& options = GetParam().options;
  auto simulation = Simulation::Create(options, trace);
  ASSERT_TRUE(simulation.ok()) << simulation.status();
  Books books(options, trace);
  const auto run = (*simulation)->Run({}, [&](const StepView& view) {
    if (!HasFatalFailure()) books.Step(view);
  });
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_EQ(run->at("steps"), books.step_);
  EXPECT_EQ(run->at("tokens"), books.tokens_);
  EXPECT_EQ(run->at("completed"), books.finished_);
  EXPECT_NEAR(run->at("simulated_s"), books.seconds_, 1e-9 * books.seconds_);
  EXPECT_NEAR(run->at("energy_j"), books.joules_, 1e-9 * books.joules_);
  EXPECT_NEAR(run->at("throughput_tokens_per_s").get<double>() * books.seconds_,
              static_cast<double>(books.tokens_), 1e-6 * static_cast<double>(books.tokens_));
  const int64_t ended = books.finished_ + run->at("refused").get<int64_t>();
  EXPECT_TRUE(options.requests == 0 || ended == options.requests) << ended;
  EXPECT_TRUE(options.mode != "closed" || books.most_in_system_ == options.concurrency)
      << books.most_in_system_;
}

INSTANTIATE_TEST_SUITE_P(Runs, ConservationTest, ::testing::ValuesIn(Settings()),
                         [](const auto& param) { return param.param.name; });

// --- workload ---

// Seeds and loads have the same meaning for every workload.

TEST(WorkloadTest, BurstsComeTogetherAtTheSameRate) {
  const Trace trace = WithArrivals(*SampleProfile("conversation", 100'000, 1), 3, 64);
  int64_t bursts = 1;
  for (size_t i = 1; i < trace.requests.size(); ++i) {
    ASSERT_GE(trace.requests[i].arrival_s, trace.requests[i - 1].arrival_s);
    bursts += trace.requests[i].arrival_s > trace.requests[i - 1].arrival_s ? 1 : 0;
  }
  EXPECT_NEAR(100'000.0 / static_cast<double>(bursts), 64, 6);
  EXPECT_NEAR(ArrivalRate(trace), 1, 0.1);
}

Trace Three() {
  return {.has_arrivals = true, .requests = {{0, 10, 1}, {1, 20, 2}, {4, 30, 3}}};
}

// The gap to a repetition is never 0: a run that reveals what has come by a time ends.
TEST(RequestSourceTest, RequestsThatComeTogetherComeAgainLater) {
  const Trace trace{.has_arrivals = true, .requests = {{0, 10, 1}, {0, 20, 2}, {0, 30, 3}}};
  RequestSource source(trace, 2, 0);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(source.Next().arrival_s, 0);
  EXPECT_EQ(source.NextArrival(), 0.5);
}

auto Row(const TraceRequest& request) {
  return std::make_tuple(request.arrival_s, request.prompt_tokens, request.output_tokens);
}

TEST(RotatedTest, SeedOneKeepsTheTrace) {
  const Trace trace = Three(), rotated = Rotated(trace, 1);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(Row(rotated.requests[i]), Row(trace.requests[i]));
}

// The trace repeats after 4 * 3 / 2 = 6 s: the gap from its end to its start is the mean gap.
TEST(RotatedTest, OtherSeedsStartElsewhereAndKeepTheGaps) {
  bool seen[3] = {};
  for (uint64_t seed = 2; seed < 40; ++seed) {
    const std::vector<TraceRequest> requests = Rotated(Three(), seed).requests;
    const int start = static_cast<int>(requests[0].prompt_tokens / 10) - 1;
    ASSERT_TRUE(start >= 0 && start < 3);
    seen[start] = true;
    EXPECT_DOUBLE_EQ(requests[0].arrival_s, 0);
    if (start == 1) {
      EXPECT_EQ(Row(requests[1]), std::make_tuple(3.0, 30, 3));
      EXPECT_EQ(Row(requests[2]), std::make_tuple(5.0, 10, 1));
    } else if (start == 2) {
      EXPECT_EQ(Row(requests[1]), std::make_tuple(2.0, 10, 1));
      EXPECT_EQ(Row(requests[2]), std::make_tuple(3.0, 20, 2));
    }
  }
  EXPECT_TRUE(seen[0] && seen[1] && seen[2]) << "38 seeds and some start was never drawn";
}

TEST(PoissonTest, ArrivalsAreOnePerSecondOrderedAndSeeded) {
  const Trace trace = *SampleProfile("code", 20'000, 1);
  const Trace arrivals = WithArrivals(trace, 4);
  EXPECT_TRUE(arrivals.has_arrivals);
  EXPECT_NEAR(ArrivalRate(arrivals), 1, 0.03);
  EXPECT_TRUE(
      std::is_sorted(arrivals.requests.begin(), arrivals.requests.end(),
                     [](const TraceRequest& a, const TraceRequest& b) { return a.arrival_s < b.arrival_s; }));
  EXPECT_EQ(arrivals.requests[7].arrival_s, WithArrivals(trace, 4).requests[7].arrival_s);
  EXPECT_NE(arrivals.requests[7].arrival_s, WithArrivals(trace, 5).requests[7].arrival_s);
}

// Three requests of 1, 2, 3 steps: E[o] = 2; mean load of an occupied slot (10 + 2 * 20.5 + 3 * 31) / 6 = 24.
TEST(FullSlotRateTest, ByHand) {
  StepCost cost = {.c_s = 1, .tl_s_per_token = 0.1};
  EXPECT_DOUBLE_EQ(MeanFreeSlots(Three(), 4, 5), 10);
  EXPECT_DOUBLE_EQ(FullSlotRequestRate(Three(), 4, 5, cost), 10 / (1 + 0.1 * 5 * 24));
}

// Balance is imperfect, so the group falls behind when offered exactly its full-slot rate, but not when
// offered nine tenths of it.
TEST(FullSlotRateTest, IsWhereQueuesBegin) {
  const Trace trace = WithArrivals(*SampleProfile("code", 20'000, 1), 1);
  SimOptions options = {.policy = "lpt", .mode = "arrivals", .steps = 1500};
  const auto wait = [&](double utilisation) {
    options.load = utilisation * FullSlotRequestRate(trace, options.workers, options.batch, options.cost) /
                   ArrivalRate(trace);
    return (*(*Simulation::Create(options, trace))->Run())["wait_steps_mean"].get<double>();
  };
  EXPECT_LT(wait(0.9), 1);
  EXPECT_GT(wait(1.1), 20);
}

// Exact counts distinguish adjacent values, such as 200 and 201, which a bucketed histogram merges.
TEST(WaitCountsTest, QuantilesAreThoseOfTheSortedWaits) {
  Rng rng(4);
  for (int trial = 0; trial < 100; ++trial) {
    WaitCounts counts;
    EXPECT_EQ(counts.Quantile(0.99), 0);
    std::vector<int64_t> waits(1 + rng.Below(100));
    for (int64_t& wait : waits)
      counts.Add(wait = static_cast<int64_t>(rng.Below(rng.Below(9) == 0 ? 3000 : 4)));
    std::sort(waits.begin(), waits.end());
    const auto size = static_cast<double>(waits.size());
    for (const double p : {0.0, 0.5, 0.51, 0.98, 0.99, 1.0}) {
      const auto rank = static_cast<size_t>(std::max(1.0, std::ceil(p * size - 1e-9)));
      EXPECT_EQ(counts.Quantile(p), waits[rank - 1]) << p << " of " << size;
    }
    EXPECT_EQ(counts.max(), waits.back());
    EXPECT_EQ(counts.count(), static_cast<int64_t>(waits.size()));
    EXPECT_NEAR(counts.mean(),
                static_cast<double>(std::accumulate(waits.begin(), waits.end(), int64_t{0})) / size, 1e-9);
  }
}

}  // namespace
}  // namespace bfio::sim
