#include "tools/sim/experiment/theory.h"

#include <cmath>
#include <numbers>

#include "tools/sim/run/drift.h"

namespace bfio::sim {
namespace {

// Steps that are averaged over, and how far back requests are followed before that.
constexpr int64_t kSteps = 1000;
constexpr double kNegligible = 1e-12;

}  // namespace

double ExpectedOfLargestNormal(int64_t count, absl::FunctionRef<double(double)> f) {
  // Midpoint rule over the density of the largest, count * phi * Phi^(count - 1).
  constexpr double kEnd = 10, kWidth = 1e-3;
  double sum = 0;
  for (double x = -kEnd + kWidth / 2; x < kEnd; x += kWidth) {
    const double density = std::exp(-0.5 * x * x) / std::sqrt(2 * std::numbers::pi);
    const double below = 0.5 * std::erfc(-x / std::numbers::sqrt2);
    const double n = static_cast<double>(count);
    sum += f(x) * n * density * std::pow(below, n - 1) * kWidth;
  }
  return sum;
}

double LargestNormal(int64_t count) {
  return ExpectedOfLargestNormal(count, [](double x) { return x; });
}

double UniformDeviation(int64_t largest) {
  const double n = static_cast<double>(largest);
  return std::sqrt((n * n - 1) / 12);
}

absl::StatusOr<SlotLoad> GeometricSlotLoad(const std::string& drift, double p, double prompt_mean,
                                           double prompt_deviation, uint64_t seed) {
  absl::StatusOr<Drift> parsed = Drift::Parse(drift, seed);
  if (!parsed.ok()) return parsed.status();
  // Nobody is older than this, in steps: every step makes a token at least.
  const int64_t oldest = static_cast<int64_t>(std::ceil(std::log(kNegligible) / std::log1p(-p)));
  SlotLoad slot;
  for (int64_t step = oldest + 2; step < oldest + 2 + kSteps; ++step) {
    double mean = 0, square = 0;
    for (int64_t first = step; first > step - oldest; --first) {
      // Somebody ended in the step before `first`, and the successor has survived to `step`.
      const double made_before =
          static_cast<double>(parsed->TokensThrough(first - 1) - parsed->TokensThrough(first - 2));
      const double made_since =
          static_cast<double>(parsed->TokensThrough(step - 1) - parsed->TokensThrough(first - 1));
      const double probability = -std::expm1(made_before * std::log1p(-p)) * std::pow(1 - p, made_since);
      const double grown =
          static_cast<double>(parsed->GrowthThrough(step - 1) - parsed->GrowthThrough(first - 1));
      mean += probability * grown;
      square += probability * grown * grown;
    }
    slot.mean += (prompt_mean + mean) / kSteps;
    slot.deviation += std::sqrt(prompt_deviation * prompt_deviation + square - mean * mean) / kSteps;
  }
  return slot;
}

double FcfsNormalEstimate(int64_t workers, int64_t batch, double slot_deviation) {
  return static_cast<double>(workers) * LargestNormal(workers) * std::sqrt(static_cast<double>(batch)) *
         slot_deviation;
}

double FcfsLowerBound(int64_t workers, int64_t batch, double prompt_deviation) {
  const double c1 = -std::expm1(-1 / (4 * std::sqrt(2 * std::numbers::pi)));
  return c1 / std::numbers::sqrt2 * static_cast<double>(workers) * prompt_deviation *
         GrowthLaw(workers, batch);
}

double BfIoUpperBound(int64_t workers, double largest_prompt, double p) {
  return static_cast<double>(workers - 1) * largest_prompt / p;
}

double GrowthLaw(int64_t workers, int64_t batch) {
  return std::sqrt(static_cast<double>(batch) * std::log(static_cast<double>(workers)));
}

}  // namespace bfio::sim
