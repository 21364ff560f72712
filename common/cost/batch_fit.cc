#include "common/cost/batch_fit.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <initializer_list>

namespace bfio {
namespace {

using BatchMoments = BasicMoments<4>;

constexpr size_t kTokens = 0, kPairs = 1, kContext = 2, kStepTime = 3, kTerms = 3;
// A slope is determined only if the standard deviation of the tokens is at least this share of their mean;
// another coefficient, only if at least this share of its sum of squares is independent of the other terms.
constexpr double kMinSpread = 0.02, kMinRest = 1e-3;
// k1 must be at least this many times its standard error.
constexpr double kSignificant = 4;
// k1 must also explain at least this share of the times' sum of squares, which is far above rounding.
constexpr double kMinGain = 1e-9;
// Lower bound of a token's time, as a share of the mean time per token: planners divide by the slope.
constexpr double kLeastSlope = 0.01;

struct Line {
  double c = 0;
  // By index of the term; 0 for those that are left out.
  std::array<double, kTerms> slopes = {};
  // Sum of squared residuals.
  double rest = 0;
};

BatchMoments AboutOrigin(const BatchMoments& m) {
  BatchMoments moments;
  moments.weight = m.weight;
  for (size_t i = 0; i < moments.mean.size(); ++i) {
    for (size_t j = 0; j < moments.mean.size(); ++j) moments.co[i][j] = m.About({}, i, j);
  }
  return moments;
}

// Least squares with these terms; absent if the data do not determine them, or a slope is not positive.
// Without the tokens among the terms, their slope is `given`.
std::optional<Line> Solve(const BatchMoments& m, std::initializer_list<size_t> terms, double given = 0) {
  // Gaussian elimination of the normal equations, symmetric and positive.
  std::array<std::array<double, kTerms + 1>, kTerms> rows = {};
  const auto with_time = [&](size_t i) { return m.co[i][kStepTime] - given * m.co[i][kTokens]; };
  for (const size_t i : terms) {
    for (const size_t j : terms) rows[i][j] = m.co[i][j];
    rows[i][kTerms] = with_time(i);
  }
  for (const size_t i : terms) {
    if (!(rows[i][i] > kMinRest * m.co[i][i])) return std::nullopt;
    for (const size_t below : terms) {
      if (below <= i) continue;
      const double share = rows[below][i] / rows[i][i];
      for (size_t j = i; j <= kTerms; ++j) rows[below][j] -= share * rows[i][j];
    }
  }
  Line line;
  for (auto term = std::rbegin(terms); term != std::rend(terms); ++term) {
    double sum = rows[*term][kTerms];
    for (const size_t j : terms) {
      if (j > *term) sum -= rows[*term][j] * line.slopes[j];
    }
    line.slopes[*term] = sum / rows[*term][*term];
    if (!(line.slopes[*term] > 0)) return std::nullopt;
  }
  line.rest = with_time(kStepTime) - given * with_time(kTokens);
  for (const size_t i : terms) line.rest -= line.slopes[i] * with_time(i);
  line.rest = std::max(0.0, line.rest);
  line.slopes[kTokens] += given;
  line.c = m.mean[kStepTime];
  for (size_t i = 0; i < kTerms; ++i) line.c -= line.slopes[i] * m.mean[i];
  if (line.c >= 0) return line;
  // A negative constant is not possible: use the best line through the origin instead or, if that is not
  // determined, this line raised by the constant.
  if (auto through = Solve(AboutOrigin(m), terms, given)) return through;
  line.rest += m.weight * line.c * line.c;
  line.c = 0;
  return line;
}

// Returns `with` if its additional term explains the times significantly better, otherwise `without`.
std::optional<Line> WithPairs(const BatchMoments& m, const std::optional<Line>& with,
                              const std::optional<Line>& without) {
  if (!with || !without) return with ? with : without;
  const double free = std::max(1.0, m.weight - kTerms - 1);
  const double gained = without->rest - with->rest;
  const double least =
      std::max(kSignificant * kSignificant * with->rest / free, kMinGain * m.co[kStepTime][kStepTime]);
  return gained > least ? with : without;
}

// No slope is negative, and that of the tokens is at least `least`: if a fit of all terms violates this,
// either the tokens or the context are left out, whichever fits better.
std::optional<Line> Solve(const BatchMoments& m, double least) {
  const double xx = m.co[kTokens][kTokens], zz = m.co[kContext][kContext], xz = m.co[kTokens][kContext];
  if (!(xx > 0) || std::sqrt(xx / m.weight) < kMinSpread * m.mean[kTokens]) return std::nullopt;
  const auto all = WithPairs(m, Solve(m, {kTokens, kPairs, kContext}), Solve(m, {kTokens, kContext}));
  if (all && all->slopes[kTokens] >= least) return all;
  const auto tokens = WithPairs(m, Solve(m, {kTokens, kPairs}), Solve(m, {kTokens}));
  if (!(xx * zz - xz * xz > kMinRest * xx * zz)) return tokens;
  const auto context = WithPairs(m, Solve(m, {kPairs, kContext}, least), Solve(m, {kContext}, least));
  return !tokens || (context && context->rest < tokens->rest) ? context : tokens;
}

}  // namespace

void BatchFit::Add(const BatchLoad& load, double seconds) {
  if (load.tokens <= 0 || !(seconds > 0) || !std::isfinite(seconds)) return;
  // The fit changes slowly, so it is not computed for every batch.
  if (batches_ % kMinBatches == 0) cost();
  if (cost_) seconds = std::min(seconds, kCut * cost_->Seconds(load));
  for (size_t i = 0; i < moments_.size(); ++i) {
    moments_[i].Scale(forget_);
    moments_[i].Add({static_cast<double>(std::max<int64_t>(0, load.tokens - kB0Tokens[i])),
                     load.prefill_pairs, load.decode_context, seconds},
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
    cost_ = BatchCost{.c_s = line->c,
                      .a_s_per_token = line->slopes[kTokens],
                      .b0_tokens = kB0Tokens[i],
                      .k1_s_per_pair = line->slopes[kPairs],
                      .k2_s_per_token = line->slopes[kContext]};
  }
  return cost_;
}

}  // namespace bfio
