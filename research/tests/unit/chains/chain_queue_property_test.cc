// Composed chains while jobs are served: the claims of Theorems 3.5 and 3.7 against simulated jobs.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <numeric>
#include <queue>
#include <vector>

#include "chains/core/tuning.h"
#include "common/base/rng.h"
#include "research/chains/chain_queue.h"
#include "research/chains/dispatcher.h"
#include "research/chains/two_chains.h"

namespace bfio::core {
namespace {

using sim::ChainJob;
using sim::ServedJob;

struct System {
  ChainService service;
  std::vector<ChainServer> servers;
  ChainPlan plan;
};

System RandomSystem(Rng& rng) {
  for (;;) {
    System system;
    system.service = {static_cast<int32_t>(2 + rng.Below(12)), 1, 0.1 + 0.2 * rng.Uniform()};
    for (uint64_t j = 0, count = 3 + rng.Below(10); j < count; ++j)
      system.servers.push_back({"", 2 + 6 * rng.Uniform(), 2 * rng.Uniform(), 0.05 + rng.Uniform()});
    system.plan = PlanWithReserve(system.servers, system.service, static_cast<int64_t>(1 + rng.Below(4)), {});
    if (!system.plan.chains.empty()) return system;
  }
}

// Join-the-Fastest-Free-Server over every possible chain of servers: each job takes the fastest chain with
// free cache, whatever capacities GCA gave. Returns, per job, the time of its chain.
std::vector<double> FastestOfAllChains(const System& system, const std::vector<ChainJob>& jobs) {
  std::vector<int64_t> left = AllCacheSlots(system.servers, system.service, system.plan.placement.ranges);
  struct End {
    double time;
    ServerChain chain;
    bool operator<(const End& other) const { return time > other.time; }
  };
  std::priority_queue<End> running;
  std::deque<size_t> waiting;
  std::vector<double> times(jobs.size(), 0);
  const auto begin = [&](size_t job, double now) {
    auto chain = FastestChain(system.servers, system.service, system.plan.placement.ranges, left);
    if (!chain.has_value()) return false;
    for (const ChainHop& hop : chain->hops) left[hop.server] -= hop.range.count;
    times[job] = chain->time;
    running.push({now + jobs[job].size * chain->time, *std::move(chain)});
    return true;
  };
  const auto ends_until = [&](double now) {
    while (!running.empty() && running.top().time <= now) {
      const End end = running.top();
      running.pop();
      for (const ChainHop& hop : end.chain.hops) left[hop.server] += hop.range.count;
      while (!waiting.empty() && begin(waiting.front(), end.time)) waiting.pop_front();
    }
  };
  for (size_t i = 0; i < jobs.size(); ++i) {
    ends_until(jobs[i].arrival);
    if (!begin(i, jobs[i].arrival)) waiting.push_back(i);
  }
  ends_until(std::numeric_limits<double>::infinity());
  return times;
}

TEST(ComposedChains, SufficeForTheFastestFreeServerRule) {
  Rng rng(1);
  for (int i = 0; i < 60; ++i) {
    const System system = RandomSystem(rng);
    // Rates up to just below saturation, so that queues form and empty.
    const double rate = system.plan.rate * (0.3 + 0.65 * rng.Uniform());
    const auto jobs = sim::PoissonJobs(rate, 1500, 100 + i);
    const auto served = sim::ServeOnChains(Rates(system.plan.chains), **MakeChainDispatcher("jffc", 1), jobs);
    const std::vector<double> all = FastestOfAllChains(system, jobs);
    for (size_t k = 0; k < jobs.size(); ++k) {
      ASSERT_NEAR(system.plan.chains[served[k].chain].time, all[k], 1e-9 * all[k])
          << "system " << i << ", job " << k;
    }
  }
}

struct Estimate {
  double mean = 0;
  // Half width of the 95 % confidence interval of `mean`, in jobs.
  double half_width = 0;
};

// Mean number of jobs present by Little's law, with a confidence interval by batch means.
Estimate MeanJobs(const std::vector<ServedJob>& served, double rate) {
  constexpr size_t kBatches = 20;
  const size_t first = served.size() / 20, batch = (served.size() - first) / kBatches;
  std::vector<double> means;
  for (size_t b = 0; b < kBatches; ++b) {
    double sum = 0;
    for (size_t i = 0; i < batch; ++i) sum += served[first + b * batch + i].response();
    means.push_back(rate * sum / static_cast<double>(batch));
  }
  const double mean = std::accumulate(means.begin(), means.end(), 0.0) / kBatches;
  double squares = 0;
  for (const double value : means) squares += (value - mean) * (value - mean);
  constexpr double kStudentT19 = 2.093;  // the quantile at 97.5 % with 19 degrees of freedom
  return {mean, kStudentT19 * std::sqrt(squares / (kBatches - 1) / kBatches)};
}

TEST(ComposedChains, OccupancyIsWithinTheBounds) {
  Rng rng(2);
  double widest = 0;
  int outside = 0;
  for (int i = 0; i < 200; ++i) {
    const System system = RandomSystem(rng);
    const auto chains = Rates(system.plan.chains);
    const double rate = TotalRate(chains) * (0.1 + 0.65 * rng.Uniform());
    const auto served =
        sim::ServeOnChains(chains, **MakeChainDispatcher("jffc", 1), sim::PoissonJobs(rate, 40'000, 500 + i));
    const Estimate jobs = MeanJobs(served, rate);
    const Occupancy bounds = OccupancyBounds(chains, rate);
    // The true mean is often close to a bound, so one interval in 40 is expected to lie beyond it; an
    // interval of twice the width holds for all 200 systems together.
    EXPECT_GE(jobs.mean + 2 * jobs.half_width, bounds.lower) << "system " << i;
    EXPECT_LE(jobs.mean - 2 * jobs.half_width, bounds.upper) << "system " << i;
    outside += jobs.mean + jobs.half_width < bounds.lower || jobs.mean - jobs.half_width > bounds.upper;
    EXPECT_LT(jobs.half_width, 0.2 * jobs.mean) << "system " << i << " says nothing";
    widest = std::max(widest, bounds.upper / bounds.lower);
  }
  EXPECT_LE(outside, 10);
  // The sample includes systems whose bounds are far apart.
  EXPECT_GT(widest, 1.5);
}

TEST(ComposedChains, OccupancyOfTwoChainsMatchesTheExactAnalysis) {
  Rng rng(3);
  int outside = 0;
  for (int i = 0; i < 40; ++i) {
    const ChainRate fast = {1 + rng.Uniform(), static_cast<int64_t>(1 + rng.Below(9))};
    const ChainRate slow = {0.1 + 0.8 * rng.Uniform(), static_cast<int64_t>(1 + rng.Below(9))};
    const std::vector<ChainRate> chains = {fast, slow};
    const double rate = TotalRate(chains) * (0.2 + 0.6 * rng.Uniform());
    const auto served = sim::ServeOnChains(chains, **MakeChainDispatcher("jffc", 1),
                                           sim::PoissonJobs(rate, 100'000, 900 + i));
    const Estimate jobs = MeanJobs(served, rate);
    const double exact = TwoChainOccupancy(fast, slow, rate);
    EXPECT_NEAR(jobs.mean, exact, 3 * jobs.half_width) << "system " << i;
    outside += std::abs(jobs.mean - exact) > jobs.half_width;
  }
  // 2 of 40 are expected outside their 95 % intervals; 7 or more have a chance of 0.3 %.
  EXPECT_LE(outside, 6);
}

TEST(ComposedChains, AboveTheTotalRateTheQueueGrowsByTheDifference) {
  const std::vector<ChainRate> chains = {{1, 2}, {0.5, 4}};
  const double rate = 5, nu = TotalRate(chains);
  const auto jobs = sim::PoissonJobs(rate, 50'000, 4);
  const auto served = sim::ServeOnChains(chains, **MakeChainDispatcher("jffc", 1), jobs);
  // The last job waits for the queue in front of it, (rate - nu) t jobs, to be served.
  const double expected = (rate - nu) * jobs.back().arrival / nu;
  EXPECT_NEAR(served.back().wait / expected, 1, 0.05);
}

}  // namespace
}  // namespace bfio::core
