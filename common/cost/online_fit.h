// Fits the cost of a worker's steps online: C, t_l and the prefill cost, with their uncertainty. Fits local
// time = C + t_l * load + c_p * prefill tokens (step_time.h) by recursive least squares in information form.
// At every moment the fit is the exact weighted least squares of all steps so far, where the step k steps ago
// has the weight (1 - 1 / memory)^k times its robust weight. Steps are processed in blocks of kBlock. A
// block's robust weights are Tukey's bisquare, scaled by the residuals' median absolute deviation: preempted
// steps get no weight, but a real change of the cost, visible in half a block, is followed. C, t_l and c_p
// are never negative: the least squares are solved under this constraint.
//
// What the steps do not determine is absent. If all loads are alike, neither the slope nor C is determined;
// the prefill cost is undetermined without prefill, or if prefill is proportional to the load. Old steps are
// forgotten even if the new ones carry no information, so a value can become absent again. Standard errors
// are those of the sandwich estimator and assume independent noise. The cost of a row of the batch is not a
// separate column: rows and load are too strongly correlated to be separated online, so it is part of C and
// t_l. Threads: none; belongs to its caller. Pure. Units: tokens and seconds. Add costs tens of nanoseconds,
// and about ten microseconds for the last step of a block; allocates nothing.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "common/cost/moments.h"
#include "common/cost/step_time.h"

namespace bfio {

struct FittedValue {
  double value = 0;
  double standard_error = 0;
};

// Absent values are not determined by the steps.
struct StepCostEstimate {
  // In seconds; seconds per resident token; seconds per prompt token.
  std::optional<FittedValue> c;
  std::optional<FittedValue> tl;
  std::optional<FittedValue> prefill;
  // Robust standard deviation of a step's time about the fit, in seconds.
  double residual_s = 0;
  // Steps processed since the start, and those of them with weight 0.
  int64_t steps = 0;
  int64_t outliers = 0;
};

struct OnlineFitOptions {
  // Steps after which the weight of an old one is 1/e. Above 1.
  double memory_steps = 2048;
  // Tukey's constant, in standard deviations; the default has 95 % of least squares' efficiency on normal
  // noise. Infinite: plain least squares.
  double cut = 4.685;
};

class OnlineStepFit {
 public:
  static constexpr int kBlock = 32;
  // Nothing is determined while the weights of all steps sum to less.
  static constexpr double kMinSteps = 2 * kBlock;
  // A slope is determined only if the standard deviation of the load, or of the prefill, is at least this
  // share of its mean.
  static constexpr double kMinSpread = 0.006;
  // Sum of weights of steps with prefill that the prefill cost needs.
  static constexpr double kMinPrefillSteps = 10;
  // Square root of (1 + r) / (1 - r), where r is the correlation of load and prefill; above this they cannot
  // be separated.
  static constexpr double kMaxCondition = 30;
  // Upper bounds of a step's values; larger ones are rejected.
  static constexpr int64_t kMaxTokens = int64_t{1} << 40;
  static constexpr double kMaxSeconds = 3600;

  explicit OnlineStepFit(const OnlineFitOptions& options = {});

  // False, without any change, for negative or too large numbers of tokens, and for a time that is negative,
  // NaN or beyond kMaxSeconds.
  bool Add(int64_t load_tokens, int64_t prefill_tokens, double local_s);

  // From all complete blocks so far; changes when `blocks` does.
  const StepCostEstimate& estimate() const { return estimate_; }
  int64_t blocks() const { return blocks_; }

 private:
  struct Coefficients {
    bool load = false, prefill = false;
    double c = 0, tl = 0, cp = 0;

    double Fit(const Moments::Vector& x) const { return c + tl * x[0] + cp * x[1]; }
  };
  using Weights = std::array<double, kBlock>;

  void EndBlock();
  Moments With(const Weights& weights) const;
  Coefficients Solve(const Moments& moments) const;
  // Robust standard deviation of the block's residuals.
  double ScaleOf(const Coefficients& fit) const;
  void TakeIn(const Coefficients& fit, const Weights& weights, double scale);
  void SetEstimate(const Coefficients& fit, double scale);

  const OnlineFitOptions options_;
  // Factor of all weights per step.
  const double forget_;
  // Weights by age within a block: the last step's is 1.
  Weights fade_;
  // Load, prefill and local time of the steps in the current block.
  std::array<Moments::Vector, kBlock> block_;
  int size_ = 0;
  // Moments of the steps by their weights (the sandwich's bread), and by the squares of weight and residual
  // (its filling).
  Moments bread_;
  Moments filling_;
  // Sums of faded weights: of steps with prefill; of all; of all, squared; of the derivative of the
  // bisquare's influence function.
  double prefill_steps_ = 0;
  double steps_ = 0;
  double influence_ = 0;
  double scale_ = 0;
  int64_t blocks_ = 0;
  StepCostEstimate estimate_;
};

}  // namespace bfio
