// The stationary distribution of two chains under JFFC, by state reduction (Grassmann, Taksar and Heyman,
// 1985) instead of the affine recursion of Appendix A.3, which subtracts numbers of similar size.
//
// Level n2 holds the states (0..c1, n2). A level is entered from below only at n1 = c1, so
//   pi(., n2) = pi(c1, n2 - 1) r(n2)
// with vectors r that depend only on the levels above: they are computed from the top down, with only
// positive numbers added.
#include "research/chains/two_chains.h"

#include <vector>

namespace bfio::core {
namespace {

// Weights are scaled down when they pass this.
constexpr double kMostWeight = 1e100;

// A level's distribution up to a factor: the flow balance in the states n1 < c1 with pi(c1) = 1. Jobs of the
// slow chain leave to the level below at rate `leave`; `back[n1]` is the flow that returns from the level
// above, per unit of pi(c1).
std::vector<double> LevelShape(const ChainRate& fast, double arrivals, double leave,
                               const std::vector<double>& back) {
  const auto top = static_cast<size_t>(fast.capacity);
  // Eliminates n1 = 0, 1, ...: `out` is the rate out of a state upward or to the level below, `gone` to the
  // level below only.
  std::vector<double> shape(top + 1, 1), out(top), in(top);
  double gone = 0;
  for (size_t n = 0; n < top; ++n) {
    gone = leave + (n > 0 ? static_cast<double>(n) * fast.rate * gone / out[n - 1] : 0);
    out[n] = arrivals + gone;
    in[n] = back[n] + (n > 0 ? in[n - 1] * arrivals / out[n - 1] : 0);
  }
  double unit = 1;  // pi(c1) in units of the shape
  for (size_t n = top; n-- > 0;) {
    shape[n] = (unit * in[n] + static_cast<double>(n + 1) * fast.rate * shape[n + 1]) / out[n];
    if (shape[n] < kMostWeight) continue;
    for (size_t above = n; above <= top; ++above) shape[above] /= kMostWeight;
    unit /= kMostWeight;
  }
  return shape;
}

}  // namespace

double TwoChainOccupancy(const ChainRate& fast, const ChainRate& slow, double arrivals) {
  const auto top = static_cast<size_t>(fast.capacity), levels = static_cast<size_t>(slow.capacity);
  // r(n2), starting with the highest level, to which nothing returns.
  std::vector<std::vector<double>> r(levels + 1);
  std::vector<double> back(top + 1, 0);
  for (size_t n2 = levels; n2 > 0; --n2) {
    const double leave = static_cast<double>(n2) * slow.rate;
    r[n2] = LevelShape(fast, arrivals, leave, back);
    double sum = 0;
    for (const double x : r[n2]) sum += x;
    // The flow from below, at rate `arrivals`, equals the flow back.
    for (double& x : r[n2]) x *= arrivals / (leave * sum);
    for (size_t n = 0; n <= top; ++n) back[n] = leave * r[n2][n];
  }
  r[0] = LevelShape(fast, arrivals, 0, back);

  double scale = 1, sum = 0, jobs = 0;
  for (size_t n2 = 0; n2 <= levels; ++n2) {
    for (size_t n1 = 0; n1 <= top; ++n1) {
      const double weight = scale * r[n2][n1];
      sum += weight;
      jobs += weight * static_cast<double>(n1 + n2);
    }
    scale *= r[n2][top];
    if (sum > kMostWeight) {
      scale /= kMostWeight;
      sum /= kMostWeight;
      jobs /= kMostWeight;
    }
  }
  // States with a queue, above the full state: geometric.
  const std::vector<ChainRate> both = {fast, slow};
  const double rho = arrivals / TotalRate(both), tail = rho / (1 - rho);
  sum += scale * tail;
  jobs += scale * tail * (static_cast<double>(top + levels) + 1 / (1 - rho));
  return jobs / sum;
}

}  // namespace bfio::core
