// Placement and composition against the paper's example and all groupings of small pools.
#include <gmock/gmock.h>

#include <random>

#include "absl/strings/str_cat.h"
#include "chains/core/composition.h"
#include "chains/core/occupancy.h"
#include "chains/core/server_pool.h"
#include "chains/core/tuning.h"
#include "common/base/rng.h"

namespace bfio::core {
namespace {

using ::testing::ElementsAre;

TEST(WholeUnits, ForgivesRounding) {
  EXPECT_EQ(WholeUnits(0.3, 0.1), 3);
  EXPECT_EQ(WholeUnits(0.29, 0.1), 2);
  EXPECT_EQ(WholeUnits(-1, 0.1), 0);
  EXPECT_EQ(WholeUnits(1e300, 1e-300), kMostSlots);
}

// The example of Figure 2 of "Serving Chain-structured Jobs with Large Memory Footprints".
constexpr double kEpsilon = 1e-3;

ChainService Figure2Service() {
  return {.blocks = 3, .block_size = 1, .cache_size = 0.1};
}

// Server k of the figure is index k - 1 here.
std::vector<ChainServer> Figure2Servers() {
  std::vector<ChainServer> servers;
  for (int l = 1; l <= 5; ++l) {
    const bool second = l == 2;
    servers.push_back({absl::StrCat("s", l), second ? 3.0 : 2.0, second ? 2.0 : 1.0, l * kEpsilon});
  }
  return servers;
}

TEST(ComposeChains, Figure2FindsAThirdChain) {
  const auto servers = Figure2Servers();
  const ChainPlan plan = PlanWithReserve(servers, Figure2Service(), 1, {});
  EXPECT_THAT(plan.placement.ranges, ElementsAre(BlockRange{0, 1}, BlockRange{1, 2}, BlockRange{0, 1},
                                                 BlockRange{1, 1}, BlockRange{2, 1}));
  ASSERT_EQ(plan.placement.chains.size(), 2u);
  EXPECT_THAT(plan.placement.chains[0].servers, ElementsAre(0, 1));
  EXPECT_THAT(plan.placement.chains[1].servers, ElementsAre(2, 3, 4));
  ASSERT_EQ(plan.chains.size(), 3u);
  EXPECT_THAT(ServersOf(plan.chains[0]), ElementsAre(0, 1));
  EXPECT_THAT(ServersOf(plan.chains[1]), ElementsAre(0, 3, 4));
  EXPECT_THAT(ServersOf(plan.chains[2]), ElementsAre(2, 3, 4));
  EXPECT_NEAR(plan.chains[0].time, 3 + 5 * kEpsilon, 1e-12);
  EXPECT_NEAR(plan.chains[1].time, 3 + 10 * kEpsilon, 1e-12);
  EXPECT_NEAR(plan.chains[2].time, 3 + 12 * kEpsilon, 1e-12);
  for (const ServerChain& chain : plan.chains) EXPECT_EQ(chain.capacity, 5);
  EXPECT_TRUE(CheckChains(servers, Figure2Service(), plan.placement.ranges, plan.chains).ok());
}

// Smallest number of disjoint groups that hold all blocks and together reach the needed rate, by exhaustive
// search; -1 if there is none.
int FewestGroups(const std::vector<ChainServer>& servers, const ChainService& service, int64_t c,
                 double needed) {
  const size_t subsets = size_t{1} << servers.size();
  // By subset of servers: its rate as one group, 0 if it does not hold all blocks; then the best rate of k
  // groups within it.
  std::vector<double> one(subsets, 0), best(subsets, 0);
  for (size_t s = 1; s < subsets; ++s) {
    double time = 0;
    int blocks = 0;
    for (size_t j = 0; j < servers.size(); ++j) {
      if ((s >> j & 1) == 0) continue;
      const int count = BlocksWithReserve(servers[j], service, c);
      blocks += count;
      time += servers[j].communication + servers[j].compute * count;
    }
    one[s] = blocks >= service.blocks ? 1 / time : 0;
  }
  for (int k = 1; k <= static_cast<int>(servers.size()); ++k) {
    std::vector<double> more(subsets, 0);
    for (size_t s = 1; s < subsets; ++s) {
      for (size_t group = s; group > 0; group = (group - 1) & s) {
        if (one[group] > 0 && (k == 1 || best[s ^ group] > 0))
          more[s] = std::max(more[s], one[group] + best[s ^ group]);
      }
    }
    if (more[subsets - 1] >= needed && more[subsets - 1] > 0) return k;
    best = more;
  }
  return -1;
}

// A pool with servers of equal memory, and a demand below or somewhat above what it carries.
struct RandomPool {
  ChainService service;
  int64_t c = 1;
  std::vector<ChainServer> servers;
  Demand demand;
};
RandomPool DrawPool(Rng& rng) {
  RandomPool pool;
  pool.service = {static_cast<int32_t>(2 + rng.Below(7)), 1, 0.1};
  pool.c = static_cast<int64_t>(1 + rng.Below(4));
  const double memory = (1 + 0.1 * static_cast<double>(pool.c)) * (1 + 3 * rng.Uniform());
  double blocks = 0;
  for (uint64_t j = 0, count = 1 + rng.Below(8); j < count; ++j) {
    pool.servers.push_back({"", memory, rng.Uniform(), 0.05 + rng.Uniform()});
    blocks += BlocksWithReserve(pool.servers.back(), pool.service, pool.c);
  }
  pool.demand = {0.5 * static_cast<double>(pool.c) * blocks / pool.service.blocks * rng.Uniform(), 0.7};
  return pool;
}

// Theorem 3.4, which is about equal memory.
TEST(GreedyPlacement, FewestChainsWhenMemoriesAreEqual) {
  Rng rng(7);
  int one = 0, several = 0, infeasible = 0;
  for (int i = 0; i < 1000; ++i) {
    SCOPED_TRACE(i);
    const RandomPool pool = DrawPool(rng);
    const BlockPlacement placement = GreedyPlacement(pool.servers, pool.service, pool.c, pool.demand);
    const double needed = pool.demand.needed() / static_cast<double>(pool.c);
    // The answer must not depend on rounding of the needed rate.
    const int fewest = FewestGroups(pool.servers, pool.service, pool.c, needed);
    EXPECT_EQ(fewest, FewestGroups(pool.servers, pool.service, pool.c, needed * (1 - 1e-12)));
    EXPECT_EQ(placement.meets_demand, fewest > 0);
    if (fewest > 0) {
      EXPECT_LE(static_cast<int>(placement.chains.size()), fewest);
    }
    ++(fewest < 0 ? infeasible : fewest == 1 ? one : several);
  }
  // The sample must contain enough of each case.
  EXPECT_GT(std::min({one, several, infeasible}), 100);
}

TEST(ComposeChains, RespectsMemoryAndBeatsDisjointChains) {
  Rng rng(11);
  for (int pool = 0; pool < 300; ++pool) {
    const ChainService service = {static_cast<int32_t>(2 + rng.Below(20)), 1, 0.05 + 0.2 * rng.Uniform()};
    std::vector<ChainServer> servers;
    for (uint64_t j = 0, count = 3 + rng.Below(15); j < count; ++j)
      servers.push_back({"", 8 * rng.Uniform(), rng.Uniform(), rng.Uniform() + 0.01});
    const auto c = static_cast<int64_t>(1 + rng.Below(8));
    const ChainPlan plan = PlanWithReserve(servers, service, c, {});
    ASSERT_TRUE(CheckChains(servers, service, plan.placement.ranges, plan.chains).ok());
    EXPECT_TRUE(std::is_sorted(plan.chains.begin(), plan.chains.end(),
                               [](const ServerChain& a, const ServerChain& b) { return a.time < b.time; }));
    EXPECT_GE(plan.rate * (1 + 1e-12), static_cast<double>(c) * plan.placement.rate_per_slot);
    for (const BlockRange& range : plan.placement.ranges) EXPECT_LE(range.end(), service.blocks);
    // The plan is maximal: for every chain at least one of its servers has no free slots.
    std::vector<int64_t> left = AllCacheSlots(servers, service, plan.placement.ranges);
    for (const ServerChain& chain : plan.chains) {
      for (const ChainHop& hop : chain.hops) left[hop.server] -= chain.capacity * hop.range.count;
    }
    EXPECT_FALSE(FastestChain(servers, service, plan.placement.ranges, left).has_value());
  }
}

// All chains whose servers have the slots, with their times.
void AllChains(const std::vector<ChainServer>& servers, const ChainService& service,
               const BlockRanges& placement, const std::vector<int64_t>& slots, int32_t passed, double time,
               std::vector<int32_t>& hops, std::map<std::vector<int32_t>, double>& all) {
  if (passed == service.blocks) all[hops] = time;
  for (int32_t j = 0; j < static_cast<int32_t>(servers.size()); ++j) {
    const int32_t blocks = placement[j].end() - passed;
    if (placement[j].first > passed || blocks <= 0 || slots[j] < blocks) continue;
    hops.push_back(j);
    AllChains(servers, service, placement, slots, placement[j].end(),
              time + servers[j].communication + servers[j].compute * blocks, hops, all);
    hops.pop_back();
  }
}

TEST(FastestOtherChain, IsTheFastestOfAllThatAreNotExcluded) {
  Rng rng(4);
  int found = 0;
  for (int round = 0; round < 200; ++round) {
    const ChainService service = {static_cast<int32_t>(2 + rng.Below(5)), 1, 0.1};
    std::vector<ChainServer> servers(2 + rng.Below(6));
    BlockRanges placement;
    std::vector<int64_t> slots;
    for (ChainServer& server : servers) {
      server = {"", 10, 0.1 + rng.Uniform(), 0.1 + rng.Uniform()};
      const auto first = static_cast<int32_t>(rng.Below(service.blocks));
      placement.push_back({first, static_cast<int32_t>(1 + rng.Below(service.blocks - first))});
      slots.push_back(static_cast<int64_t>(rng.Below(20)));
    }
    std::map<std::vector<int32_t>, double> all;
    std::vector<int32_t> hops;
    AllChains(servers, service, placement, slots, 0, 0, hops, all);
    // One after another, in the order of their times.
    std::vector<std::vector<int32_t>> taken;
    while (const auto chain = FastestOtherChain(servers, service, placement, slots, taken)) {
      const auto fastest = std::min_element(all.begin(), all.end(),
                                            [](const auto& a, const auto& b) { return a.second < b.second; });
      ASSERT_NE(fastest, all.end());
      EXPECT_EQ(ServersOf(*chain), fastest->first);
      EXPECT_NEAR(chain->time, fastest->second, 1e-9);
      taken.push_back(ServersOf(*chain));
      std::erase_if(all, [&](const auto& other) {
        return std::all_of(taken.back().begin(), taken.back().end(), [&](int32_t j) {
          return std::find(other.first.begin(), other.first.end(), j) != other.first.end();
        });
      });
      ++found;
    }
    EXPECT_TRUE(all.empty());
  }
  EXPECT_GT(found, 300);
}

TEST(CheckPool, NamesErrors) {
  auto servers = Figure2Servers();
  EXPECT_TRUE(CheckPool(servers, Figure2Service()).ok());
  EXPECT_THAT(std::string(CheckPool({}, Figure2Service()).message()),
              ::testing::HasSubstr("1 to 1024 servers"));
  servers[3].compute = -1;
  EXPECT_THAT(std::string(CheckPool(servers, Figure2Service()).message()),
              ::testing::HasSubstr("server 3 ('s4')"));
  servers[3].compute = 0;
  servers[3].communication = 0;
  EXPECT_EQ(CheckPool(servers, Figure2Service()).code(), absl::StatusCode::kInvalidArgument);
  servers = Figure2Servers();
  EXPECT_EQ(CheckPool(servers, {0, 1, 1}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CheckPool(servers, {3, 1, 1e-9}).code(), absl::StatusCode::kInvalidArgument);
}

// --- occupancy ---

// Bounds of the occupancy against the stationary distribution of the whole Markov chain, solved by
// iteration.

// Mean number of jobs by Gauss-Seidel over all states of the Markov chain; the queue is geometric above the
// full state.
double WholeChain(const std::vector<ChainRate>& chains, double lambda) {
  std::vector<size_t> stride;
  size_t states = 1;
  for (const ChainRate& chain : chains) {
    stride.push_back(states);
    states *= static_cast<size_t>(chain.capacity) + 1;
  }
  const auto jobs_on = [&](size_t s, size_t k) { return s / stride[k] % (chains[k].capacity + 1); };
  // The state after an arrival in state s; `states` stands for the queue.
  const auto next = [&](size_t s) {
    for (size_t k = 0; k < chains.size(); ++k) {
      if (static_cast<int64_t>(jobs_on(s, k)) < chains[k].capacity) return s + stride[k];
    }
    return states;
  };
  std::vector<double> pi(states, 1.0 / static_cast<double>(states));
  std::vector<std::vector<std::pair<size_t, double>>> in(states);
  std::vector<double> out(states, 0);
  for (size_t s = 0; s < states; ++s) {
    if (next(s) != states) {
      in[next(s)].emplace_back(s, lambda);
      out[s] += lambda;
    }
    for (size_t k = 0; k < chains.size(); ++k) {
      const double rate = static_cast<double>(jobs_on(s, k)) * chains[k].rate;
      if (rate == 0) continue;
      in[s - stride[k]].emplace_back(s, rate);
      out[s] += rate;
    }
  }
  for (double change = 1; change > 1e-14;) {
    change = 0;
    double sum = 0;
    for (size_t s = 0; s < states; ++s) {
      double flow = 0;
      for (const auto& [from, rate] : in[s]) flow += rate * pi[from];
      change = std::max(change, std::abs(flow / out[s] - pi[s]) / pi[s]);
      pi[s] = flow / out[s];
      sum += pi[s];
    }
    for (double& p : pi) p /= sum;
  }
  const double rho = lambda / TotalRate(chains), tail = pi[states - 1] * rho / (1 - rho);
  double mass = tail, mean = 0;
  int64_t full = 0;
  for (const ChainRate& chain : chains) full += chain.capacity;
  for (size_t s = 0; s < states; ++s) {
    mass += pi[s];
    for (size_t k = 0; k < chains.size(); ++k) mean += pi[s] * static_cast<double>(jobs_on(s, k));
  }
  return (mean + tail * (static_cast<double>(full) + 1 / (1 - rho))) / mass;
}

TEST(Occupancy, BoundsHoldForTheWholeChain) {
  Rng rng(3);
  for (int i = 0; i < 60; ++i) {
    const ChainRate fast = {1 + rng.Uniform(), static_cast<int64_t>(1 + rng.Below(7))};
    const ChainRate slow = {0.05 + 0.9 * rng.Uniform(), static_cast<int64_t>(1 + rng.Below(7))};
    const double lambda = TotalRate(std::vector<ChainRate>{fast, slow}) * (0.02 + 0.96 * rng.Uniform());
    const double exact = WholeChain({fast, slow}, lambda);
    const Occupancy bounds = OccupancyBounds(std::vector<ChainRate>{fast, slow}, lambda);
    EXPECT_LE(bounds.lower, exact * (1 + 1e-10));
    EXPECT_GE(bounds.upper, exact * (1 - 1e-10));
  }
}

// Mean number of jobs of an M/M/C queue by Erlang's recursion, which is numerically stable.
double ErlangMean(double a, int64_t servers) {
  double blocked = 1;
  for (int64_t n = 1; n <= servers; ++n) blocked = a * blocked / (static_cast<double>(n) + a * blocked);
  const double rho = a / static_cast<double>(servers), waits = blocked / (1 - rho * (1 - blocked));
  return a + waits * rho / (1 - rho);
}

TEST(Occupancy, ManySlotsAndExtremeLoads) {
  for (const int64_t slots : {10, 1000, 100'000}) {
    for (const double rho : {1e-6, 0.1, 0.7, 0.99, 0.99999}) {
      const double lambda = rho * 0.25 * static_cast<double>(2 * slots);
      const std::vector<ChainRate> chains = {{0.25, slots}, {0.25, slots}};
      const double exact = ErlangMean(lambda / 0.25, 2 * slots);
      const Occupancy bounds = OccupancyBounds(chains, lambda);
      EXPECT_NEAR(bounds.lower / exact, 1, 1e-9) << absl::StrCat(slots, " at ", rho);
      EXPECT_NEAR(bounds.upper / exact, 1, 1e-9);
    }
  }
}

TEST(OccupancyBounds, AreFiniteAsFarAsRatesMayDiffer) {
  const std::vector<ChainRate> chains = {{1e9, 5}, {1e-9, 50}};
  for (const double arrivals : {1e-8, 1.0, 4e9}) {
    const Occupancy bounds = OccupancyBounds(chains, arrivals);
    EXPECT_TRUE(std::isfinite(bounds.lower) && std::isfinite(bounds.upper)) << arrivals;
    EXPECT_LE(bounds.lower, bounds.upper * (1 + 1e-12)) << arrivals;
  }
}

// Rounding in the summation must not decide whether the arrival rate is below nu, the total service rate.
TEST(OccupancyBounds, ArePositiveUpToTheEdge) {
  for (int seed = 1; seed <= 500; ++seed) {
    std::mt19937_64 random(static_cast<uint64_t>(seed));
    std::uniform_real_distribution<double> rate(0.01, 3);
    std::vector<ChainRate> chains;
    for (int k = 0; k < 6; ++k) chains.push_back({rate(random), static_cast<int64_t>(1 + random() % 9)});
    const Occupancy bounds = OccupancyBounds(chains, std::nextafter(TotalRate(chains), 0));
    EXPECT_GT(bounds.lower, 0) << seed;
    EXPECT_GT(bounds.upper, 0) << seed;
  }
}

}  // namespace
}  // namespace bfio::core
