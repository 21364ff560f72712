// Fits the cost of a worker's steps online: C and t_l, with their uncertainty. Fits local time = C + t_l *
// load
// + c_p * prefill tokens (step_time.h), where c_p only keeps prompts out of the other two. At every moment
// the fit is the weighted least squares of all steps so far, where the step k steps ago has the weight (1 - 1
// / memory)^k times its robust weight. Steps are processed in blocks of kBlock. A block's robust weights are
// Tukey's bisquare, scaled by the residuals' median absolute deviation: preempted steps get no weight, but a
// real change of the cost, visible in half a block, is followed. No cost is negative.
//
// What the steps do not determine is absent: if all loads are alike, neither the slope nor C is determined.
// Old steps are forgotten even if the new ones carry no information, so a value can become absent again.
// Standard errors assume independent noise and steps of equal weight. The cost of a row of the batch is not a
// separate column: rows and load are too strongly correlated to be separated online, so it is part of C and
// t_l. Threads: none; belongs to its caller. Pure. Units: tokens and seconds. Add costs tens of nanoseconds,
// and about ten microseconds for the last step of a block; allocates nothing.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "common/cost/least_squares.h"
#include "common/cost/moments.h"
#include "common/cost/step_time.h"

namespace bfio {

struct FittedValue {
  double value = 0;
  double standard_error = 0;
};

// In seconds; seconds per resident token. Absent values are not determined by the steps.
struct StepCostEstimate {
  std::optional<FittedValue> c;
  std::optional<FittedValue> tl;
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
  // Upper bounds of a step's values; larger ones are rejected.
  static constexpr int64_t kMaxTokens = int64_t{1} << 40;
  static constexpr double kMaxSeconds = 3600;

  // `memory_steps`: steps after which the weight of an old one is 1/e. Above 1.
  explicit OnlineStepFit(double memory_steps = 2048);

  // False, without any change, for negative or too large numbers of tokens, and for a time that is negative,
  // NaN or beyond kMaxSeconds.
  bool Add(int64_t load_tokens, int64_t prefill_tokens, double local_s);

  // From all complete blocks so far; changes when `blocks` does.
  const StepCostEstimate& estimate() const { return estimate_; }
  int64_t blocks() const { return blocks_; }

 private:
  using Weights = std::array<double, kBlock>;

  void EndBlock();
  Moments With(const Weights& weights) const;
  Line<2> Fit(const Moments& moments) const;
  // Robust standard deviation of the block's residuals.
  double ScaleOf(const Line<2>& fit) const;
  void SetEstimate(const Line<2>& fit);

  const double memory_steps_;
  // Factor of all weights per step.
  const double forget_;
  // Weights by age within a block: the last step's is 1.
  Weights fade_;
  // Load, prefill and local time of the steps in the current block.
  std::array<Moments::Vector, kBlock> block_;
  int size_ = 0;
  Moments moments_;
  // Sum of faded weights of steps with prefill.
  double prefill_steps_ = 0;
  double scale_ = 0;
  int64_t blocks_ = 0;
  StepCostEstimate estimate_;
};

}  // namespace bfio
