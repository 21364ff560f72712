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

struct Line {
  double c = 0, a = 0, k2 = 0;
  // Sum of squared residuals.
  double rest = 0;
};

std::optional<Line> Solve(const Moments& m) {
  const double xx = m.co[kTokens][kTokens], zz = m.co[kContext][kContext], xz = m.co[kTokens][kContext];
  const double xt = m.co[kTokens][kStepTime], zt = m.co[kContext][kStepTime];
  if (!(xx > 0) || std::sqrt(xx / m.weight) < kMinSpread * m.mean[kTokens]) return std::nullopt;
  Line line;
  const double determinant = xx * zz - xz * xz;
  if (zz > 0 && determinant > kMinRest * xx * zz) {
    line.a = (xt * zz - zt * xz) / determinant;
    line.k2 = (zt * xx - xt * xz) / determinant;
  }
  if (line.k2 <= 0 || line.a <= 0) line = {0, xt / xx, 0, 0};
  if (line.a <= 0) return std::nullopt;
  line.c = m.mean[kStepTime] - line.a * m.mean[kTokens] - line.k2 * m.mean[kContext];
  line.rest = m.co[kStepTime][kStepTime] - line.a * xt - line.k2 * zt;
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
  double least = 0;
  for (size_t i = 0; i < moments_.size(); ++i) {
    const auto line = Solve(moments_[i]);
    if (!line || (cost_ && line->rest >= least)) continue;
    least = line->rest;
    cost_ = BatchCost{
        .c_s = line->c, .a_s_per_token = line->a, .b0_tokens = kB0Tokens[i], .k2_s_per_token = line->k2};
  }
  return cost_;
}

}  // namespace bfio
