#include "chains/core/occupancy.h"

#include <algorithm>

namespace bfio::core {
namespace {

// Weights are scaled down when they pass this.
constexpr double kLarge = 1e200;
// The sums below end when their remaining terms are less than this share of them.
constexpr double kNothing = 1e-18;

// Mean number of jobs of the birth-death process with birth rate lambda whose death rate with n jobs is that
// of n jobs on the chains in this order, each filled before the next. nu: total rate of the chains, the same
// in every order.
double BirthDeathMean(absl::Span<const ChainRate> chains, double nu, double lambda) {
  const double rho = lambda / nu;
  double weight = 1, sum = 1, jobs = 0, death = 0;
  int64_t n = 0;
  for (const ChainRate& chain : chains) {
    for (int64_t k = 0; k < chain.capacity; ++k) {
      ++n;
      death += chain.rate;
      weight *= lambda / death;
      sum += weight;
      jobs += static_cast<double>(n) * weight;
      if (sum > kLarge) {
        weight /= kLarge;
        sum /= kLarge;
        jobs /= kLarge;
      }
      // Death rates only grow, so the remaining terms are at most geometric.
      const double ratio = lambda / death;
      if (ratio < 1 && weight * static_cast<double>(n + 1) < kNothing * jobs * (1 - ratio) * (1 - ratio))
        return jobs / sum;
    }
  }
  // Above C jobs: geometric with ratio rho; the term of C itself is counted above.
  const double tail = rho / (1 - rho);
  sum += weight * tail;
  jobs += weight * tail * (static_cast<double>(n) + 1 / (1 - rho));
  return jobs / sum;
}

}  // namespace

std::vector<ChainRate> Rates(absl::Span<const ServerChain> chains) {
  std::vector<ChainRate> rates;
  rates.reserve(chains.size());
  for (const ServerChain& chain : chains) rates.push_back({chain.rate(), chain.capacity});
  return rates;
}

double TotalRate(absl::Span<const ChainRate> chains) {
  double rate = 0;
  for (const ChainRate& chain : chains) rate += chain.rate * static_cast<double>(chain.capacity);
  return rate;
}

Occupancy OccupancyBounds(absl::Span<const ChainRate> chains, double arrivals) {
  const double nu = TotalRate(chains);
  std::vector<ChainRate> sorted(chains.begin(), chains.end());
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const ChainRate& a, const ChainRate& b) { return a.rate > b.rate; });
  Occupancy bounds;
  bounds.lower = BirthDeathMean(sorted, nu, arrivals);
  std::reverse(sorted.begin(), sorted.end());
  bounds.upper = BirthDeathMean(sorted, nu, arrivals);
  return bounds;
}

}  // namespace bfio::core
