// What a worker's steps cost, fitted while they are made: C, t_l and the prefill cost with their uncertainty.
//
// Purpose: local time = C + t_l * load + c_p * prefill tokens (step_time.h) by recursive least squares in
// information form: the fit is, at every moment, the exact weighted least squares of all steps so far, the
// step k steps ago counting (1 - 1 / memory)^k times its robust weight. Steps come in blocks of kBlock. A
// block's weights are Tukey's bisquare on the residuals' median absolute deviation, so that steps which were
// preempted count nothing, while a cost that really changes, which half a block agrees on, is taken on. C,
// t_l and c_p are never negative: the least squares under that constraint, not a fit that is cut off.
//
// What cannot be known is absent: with loads that are all alike the slope is not known, and neither is C; a
// prefill cost is not known without prefill, or when prefill goes with the load. Old steps are forgotten even
// if the new ones teach nothing, so what was known can become unknown again. Standard errors are the
// sandwich's and take the steps' noise to be independent. The cost of a row of the batch is not a column:
// rows and load go together too closely to be separated online, so it is part of C and t_l.
//
// Threads: none; belongs to its caller. Pure. Tokens and seconds. Add costs tens of nanoseconds, and the last
// of a block some ten microseconds; nothing is allocated.
#ifndef BFIO_COMMON_COST_ONLINE_FIT_H_
#define BFIO_COMMON_COST_ONLINE_FIT_H_

#include <array>
#include <cstdint>
#include <limits>
#include <optional>

#include "common/cost/moments.h"
#include "common/cost/step_time.h"

namespace bfio {

struct FittedValue {
  double value = 0;
  double standard_error = 0;
};

// Absent: not determined by the steps.
struct StepCostEstimate {
  // Seconds; seconds per resident token; seconds per prompt token.
  std::optional<FittedValue> c;
  std::optional<FittedValue> tl;
  std::optional<FittedValue> prefill;
  // Robust standard deviation of a step's time about the fit, seconds.
  double residual_s = 0;
  // Steps taken in since the start, and those of them that count nothing.
  int64_t steps = 0;
  int64_t outliers = 0;
};

struct OnlineFitOptions {
  // Steps after which an old one counts 1/e. Above 1.
  double memory_steps = 2048;
  // Tukey's constant, in standard deviations: 95 % of least squares' efficiency on normal noise. Infinite:
  // plain least squares.
  double cut = 4.685;
};

class OnlineStepFit {
 public:
  static constexpr int kBlock = 32;
  // Nothing is known before so many steps count.
  static constexpr double kMinSteps = 2 * kBlock;
  // Standard deviation of the load, or of the prefill, over its mean that a slope needs.
  static constexpr double kMinSpread = 0.006;
  // Steps with prefill that its cost needs.
  static constexpr double kMinPrefillSteps = 10;
  // Square root of (1 + r) / (1 - r), r the correlation of load and prefill, above which they are one.
  static constexpr double kMaxCondition = 30;
  // What a step may be at most; more is refused.
  static constexpr int64_t kMaxTokens = int64_t{1} << 40;
  static constexpr double kMaxSeconds = 3600;

  explicit OnlineStepFit(const OnlineFitOptions& options = {});

  // False, and nothing is taken in, for negative or absurd tokens and for a time that is negative, no number
  // or beyond kMaxSeconds.
  bool Add(int64_t load_tokens, int64_t prefill_tokens, double local_s);

  // Of all whole blocks so far; changes when `blocks` does.
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
  // What a step's weight is multiplied with per step.
  const double forget_;
  // By age within a block: the last step's weight is 1.
  Weights fade_;
  // Load, prefill, local time of the present block.
  std::array<Moments::Vector, kBlock> block_;
  int size_ = 0;
  // Of the steps, by their weights; and by the squares of weight and residual: the sandwich's filling.
  Moments bread_;
  Moments filling_;
  // Sums of faded weights: of steps with prefill; of all; of all, squared; of the derivative of the
  // bisquare's influence.
  double prefill_steps_ = 0;
  double steps_ = 0;
  double influence_ = 0;
  double scale_ = 0;
  int64_t blocks_ = 0;
  StepCostEstimate estimate_;
};

}  // namespace bfio

#endif  // BFIO_COMMON_COST_ONLINE_FIT_H_
