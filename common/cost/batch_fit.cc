#include "common/cost/batch_fit.h"

#include <algorithm>
#include <cmath>

namespace bfio {
namespace {

constexpr size_t kTokens = 0, kContext = 1, kStepTime = 2;
// A slope is determined only if the standard deviation of the tokens is at least this share of their mean;
// the coefficient of the context, only if at least this share of its sum of squares is independent of the
// tokens.
constexpr double kMinSpread = 0.02, kMinRest = 1e-3;
// Where the context explains all, a token takes this share of the mean time per token: planners divide by it.
constexpr double kLeastSlope = 0.01;

struct Line {
  double c = 0, a = 0, k2 = 0;
  // Sum of squared residuals.
  double rest = 0;
};

// No coefficient is negative: where the tokens or the context would have such a one, the other explains what
// it can, with a slope of `least`. `separable`: the two vary independently of one another.
std::optional<Line> SolveByOne(const Moments& m, double least, bool separable) {
  const double xx = m.co[kTokens][kTokens], zz = m.co[kContext][kContext], xz = m.co[kTokens][kContext];
  const double xt = m.co[kTokens][kStepTime], zt = m.co[kContext][kStepTime];
  const double tt = m.co[kStepTime][kStepTime];
  std::optional<Line> line;
  if (xt > 0) line = Line{.a = xt / xx, .rest = tt - xt * xt / xx};
  if (!separable) return line;
  const double k2 = (zt - least * xz) / zz;
  const double rest = tt - 2 * least * xt + least * least * xx - k2 * (zt - least * xz);
  if (k2 > 0 && (!line || rest < line->rest)) line = Line{.a = least, .k2 = k2, .rest = rest};
  return line;
}

std::optional<Line> Solve(const Moments& m, double least) {
  const double xx = m.co[kTokens][kTokens], zz = m.co[kContext][kContext], xz = m.co[kTokens][kContext];
  const double xt = m.co[kTokens][kStepTime], zt = m.co[kContext][kStepTime];
  if (!(xx > 0) || std::sqrt(xx / m.weight) < kMinSpread * m.mean[kTokens]) return std::nullopt;
  Line line;
  const double determinant = xx * zz - xz * xz;
  const bool separable = zz > 0 && determinant > kMinRest * xx * zz;
  if (separable) {
    line.a = (xt * zz - zt * xz) / determinant;
    line.k2 = (zt * xx - xt * xz) / determinant;
    line.rest = m.co[kStepTime][kStepTime] - line.a * xt - line.k2 * zt;
  }
  if (line.k2 <= 0 || line.a < least) {
    const std::optional<Line> one = SolveByOne(m, least, separable);
    if (!one) return std::nullopt;
    line = *one;
  }
  line.c = m.mean[kStepTime] - line.a * m.mean[kTokens] - line.k2 * m.mean[kContext];
  if (line.c < 0) {
    // A negative constant is replaced by a line through the origin.
    line.rest += m.weight * line.c * line.c;
    line.c = 0;
  }
  return line;
}

}  // namespace

void BatchFit::Add(const BatchLoad& load, double seconds) {
  if (load.tokens <= 0 || !(seconds > 0) || !std::isfinite(seconds)) return;
  // The fit changes slowly, so it is not computed for every batch.
  if (batches_ % kMinBatches == 0) cost();
  if (cost_) seconds = std::min(seconds, kCut * cost_->Seconds(load));
  for (size_t i = 0; i < moments_.size(); ++i) {
    moments_[i].Scale(forget_);
    moments_[i].Add(
        {static_cast<double>(std::max<int64_t>(0, load.tokens - kB0Tokens[i])), load.decode_context, seconds},
        1);
  }
  ++batches_;
}

std::optional<BatchCost> BatchFit::cost() const {
  if (batches_ < kMinBatches) return std::nullopt;
  if (cost_at_ == batches_) return cost_;
  cost_at_ = batches_;
  cost_.reset();
  const double slope = kLeastSlope * moments_[0].mean[kStepTime] / moments_[0].mean[kTokens];
  double least = 0;
  for (size_t i = 0; i < moments_.size(); ++i) {
    const auto line = Solve(moments_[i], slope);
    if (!line || (cost_ && line->rest >= least)) continue;
    least = line->rest;
    cost_ = BatchCost{
        .c_s = line->c, .a_s_per_token = line->a, .b0_tokens = kB0Tokens[i], .k2_s_per_token = line->k2};
  }
  return cost_;
}

}  // namespace bfio
