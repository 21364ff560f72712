// Bounds of the occupancy against the stationary distribution of the whole Markov chain, solved by
// iteration.
#include "chains/core/occupancy.h"

#include <gtest/gtest.h>

#include <random>

#include "absl/strings/str_cat.h"
#include "common/base/rng.h"

namespace bfio::core {
namespace {

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
