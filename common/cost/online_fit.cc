#include "common/cost/online_fit.h"

#include <algorithm>
#include <cmath>

namespace bfio {
namespace {

// Indices in the moments' vectors.
constexpr size_t kLoad = 0, kPrefill = 1, kTime = 2;
// Standard deviation of a normal distribution, in median absolute deviations.
constexpr double kMadToSigma = 1.4826;
// Rounds with Huber's weights, which find the majority of the steps from a bad start, and then with the
// bisquare's.
constexpr int kHuberRounds = 8, kBisquareRounds = 6;
constexpr double kHuberCut = 1.345;
// Rounding error relative to the times: a smaller residual is no outlier.
constexpr double kScaleFloor = 1e-7;
constexpr double kMinVariance = 1e-12;

bool Varies(const Moments& m, size_t i) {
  const double sd = std::sqrt(std::max(0.0, m.co[i][i]) / m.weight);
  return sd > 0 && sd >= OnlineStepFit::kMinSpread * m.mean[i];
}

double Correlation(const Moments& m) {
  const double spread = std::sqrt(m.co[kLoad][kLoad]) * std::sqrt(m.co[kPrefill][kPrefill]);
  return spread > 0 ? std::clamp(m.co[kLoad][kPrefill] / spread, -1.0, 1.0) : 1;
}

// Slopes that solve the normal equations about `at` for the columns in `use`. False when the solution is not
// unique.
bool Slopes(const Moments& m, const Moments::Vector& at, bool load, bool prefill, double out[2]) {
  const double a = m.About(at, kLoad, kLoad), b = m.About(at, kPrefill, kPrefill);
  const double ay = m.About(at, kLoad, kTime), by = m.About(at, kPrefill, kTime);
  out[0] = out[1] = 0;
  if ((load && !(a > 0)) || (prefill && !(b > 0))) return false;
  if (!load || !prefill) {
    if (load) out[0] = ay / a;
    if (prefill) out[1] = by / b;
    return true;
  }
  // In units of each column's standard deviation, for numerical stability.
  const double sa = std::sqrt(a), sb = std::sqrt(b);
  const double r = m.About(at, kLoad, kPrefill) / sa / sb, rest = 1 - r * r;
  if (!(rest > kMinVariance)) return false;
  out[0] = (ay / sa - r * (by / sb)) / rest / sa;
  out[1] = (by / sb - r * (ay / sa)) / rest / sb;
  return true;
}

}  // namespace

OnlineStepFit::OnlineStepFit(const OnlineFitOptions& options)
    : options_(options), forget_(1 - 1 / options.memory_steps) {
  for (int i = 0; i < kBlock; ++i) fade_[i] = std::pow(forget_, kBlock - 1 - i);
}

bool OnlineStepFit::Add(int64_t load_tokens, int64_t prefill_tokens, double local_s) {
  const auto sane = [](int64_t tokens) { return tokens >= 0 && tokens <= kMaxTokens; };
  // The negated comparison also catches NaN.
  if (!sane(load_tokens) || !sane(prefill_tokens) || !(local_s >= 0 && local_s <= kMaxSeconds)) return false;
  block_[size_] = {static_cast<double>(load_tokens), static_cast<double>(prefill_tokens), local_s};
  if (++size_ == kBlock) EndBlock();
  return true;
}

Moments OnlineStepFit::With(const Weights& weights) const {
  Moments all = bread_;
  for (int i = 0; i < kBlock; ++i) all.Add(block_[i], fade_[i] * weights[i]);
  return all;
}

OnlineStepFit::Coefficients OnlineStepFit::Solve(const Moments& m) const {
  Coefficients best;
  best.load = Varies(m, kLoad);
  best.prefill = prefill_steps_ >= kMinPrefillSteps && Varies(m, kPrefill);
  if (best.load && best.prefill) {
    const double r = std::abs(Correlation(m));
    best.prefill = 1 + r < kMaxCondition * kMaxCondition * (1 - r);
  }
  // The minimum of a convex function over a box is the best of the feasible minima over its faces, of which
  // there are at most eight. The interior comes first: if its minimum is feasible, it is the best.
  double least = std::numeric_limits<double>::infinity();
  for (int face = 0; face < 8; ++face) {
    const bool load = best.load && (face & 1) == 0, prefill = best.prefill && (face & 2) == 0;
    const bool constant = (face & 4) == 0;
    const Moments::Vector at = constant ? m.mean : Moments::Vector{};
    double slope[2];
    if (!Slopes(m, at, load, prefill, slope) || slope[0] < 0 || slope[1] < 0) continue;
    const double c = constant ? m.mean[kTime] - slope[0] * m.mean[kLoad] - slope[1] * m.mean[kPrefill] : 0;
    if (c < 0) continue;
    const double squares = m.About(at, kTime, kTime) - slope[0] * m.About(at, kLoad, kTime) -
                           slope[1] * m.About(at, kPrefill, kTime);
    if (squares >= least) continue;
    least = squares;
    best.c = c, best.tl = slope[0], best.cp = slope[1];
    if (face == 0) break;
  }
  return best;
}

double OnlineStepFit::ScaleOf(const Coefficients& fit) const {
  std::array<double, kBlock> absolute;
  double time = 0;
  for (int i = 0; i < kBlock; ++i) {
    absolute[i] = std::abs(block_[i][kTime] - fit.Fit(block_[i]));
    time += block_[i][kTime] / kBlock;
  }
  std::nth_element(absolute.begin(), absolute.begin() + kBlock / 2, absolute.end());
  return std::max(kMadToSigma * absolute[kBlock / 2], kScaleFloor * time);
}

void OnlineStepFit::EndBlock() {
  const double faded = std::pow(forget_, kBlock);
  bread_.Scale(faded);
  filling_.Scale(faded * faded);
  prefill_steps_ *= faded;
  steps_ *= faded;
  influence_ *= faded;
  for (int i = 0; i < kBlock; ++i) {
    steps_ += fade_[i];
    if (block_[i][kPrefill] > 0) prefill_steps_ += fade_[i];
  }
  Weights weights;
  weights.fill(1);
  Coefficients fit = Solve(With(weights));
  double scale = std::max(scale_, ScaleOf(fit));
  const bool robust = std::isfinite(options_.cut);
  for (int round = 0; robust && round < kHuberRounds + kBisquareRounds; ++round) {
    scale = std::max(scale_, ScaleOf(fit));
    for (int i = 0; i < kBlock; ++i) {
      const double z = std::abs(block_[i][kTime] - fit.Fit(block_[i])) / std::max(scale, 1e-300);
      if (round < kHuberRounds) {
        weights[i] = z <= kHuberCut ? 1 : kHuberCut / z;
      } else {
        const double u = z / options_.cut;
        weights[i] = u >= 1 ? 0 : (1 - u * u) * (1 - u * u);
      }
    }
    fit = Solve(With(weights));
  }
  TakeIn(fit, weights, scale);
  // Computed from this block alone, so that a scale that a change of the cost has inflated does not persist.
  const double present = ScaleOf(fit);
  scale_ = blocks_ == 0 ? present
                        : scale_ + std::min(1.0, 4 * kBlock / options_.memory_steps) * (present - scale_);
  ++blocks_;
  size_ = 0;
  SetEstimate(fit, scale_);
}

void OnlineStepFit::TakeIn(const Coefficients& fit, const Weights& weights, double scale) {
  bread_ = With(weights);
  for (int i = 0; i < kBlock; ++i) {
    const double residual = block_[i][kTime] - fit.Fit(block_[i]);
    const double w = fade_[i] * weights[i];
    filling_.Add(block_[i], w * w * residual * residual);
    double slope = 1;  // psi', the derivative of the influence function
    if (std::isfinite(options_.cut)) {
      const double u = residual / (options_.cut * std::max(scale, 1e-300));
      slope = std::abs(u) >= 1 ? 0 : (1 - u * u) * (1 - 5 * u * u);
    }
    influence_ += fade_[i] * slope;
    if (weights[i] == 0) ++estimate_.outliers;
  }
  estimate_.steps += kBlock;
}

void OnlineStepFit::SetEstimate(const Coefficients& fit, double scale) {
  estimate_.c = estimate_.tl = estimate_.prefill = std::nullopt;
  estimate_.residual_s = scale;
  if (bread_.weight < kMinSteps || !(influence_ > 0)) return;
  // Covariance in coordinates about the means, where the constant is uncorrelated with the slopes: A^-1 B
  // A^-1, with A = diag(weight, co) and B the sandwich's filling about the same point; psi' replaces the
  // weights.
  const Moments& m = bread_;
  constexpr size_t n = 3;  // constant, load, prefill; zeros where a column is not in the fit
  double inverse[3][3] = {{1 / m.weight, 0, 0}, {0, 0, 0}, {0, 0, 0}};
  const double a = m.co[kLoad][kLoad], b = m.co[kPrefill][kPrefill], ab = m.co[kLoad][kPrefill];
  if (fit.load && fit.prefill) {
    const double rest = 1 - ab / a * (ab / b);
    inverse[1][1] = 1 / (a * rest), inverse[2][2] = 1 / (b * rest);
    inverse[1][2] = inverse[2][1] = -ab / a / b / rest;
  } else if (fit.load) {
    inverse[1][1] = 1 / a;
  } else if (fit.prefill) {
    inverse[2][2] = 1 / b;
  }
  double meat[3][3], half[3][3] = {}, covariance[3][3] = {};
  for (size_t i = 0; i < 3; ++i) {
    for (size_t j = 0; j < 3; ++j) {
      const double di = i == 0 ? 1 : filling_.mean[i - 1] - m.mean[i - 1];
      const double dj = j == 0 ? 1 : filling_.mean[j - 1] - m.mean[j - 1];
      meat[i][j] = filling_.weight * di * dj + (i > 0 && j > 0 ? filling_.co[i - 1][j - 1] : 0);
    }
  }
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = 0; j < n; ++j) {
      for (size_t k = 0; k < n; ++k) half[i][j] += inverse[i][k] * meat[k][j];
    }
  }
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = 0; j < n; ++j) {
      for (size_t k = 0; k < n; ++k) covariance[i][j] += half[i][k] * inverse[k][j];
    }
  }
  const double kappa = influence_ / m.weight;
  const double free = steps_ / std::max(1.0, steps_ - 1 - fit.load - fit.prefill);
  const auto error = [&](const double(&g)[3]) {
    double sum = 0;
    for (size_t i = 0; i < n; ++i) {
      for (size_t j = 0; j < n; ++j) sum += g[i] * g[j] * covariance[i][j];
    }
    return std::sqrt(std::max(0.0, sum) * free) / kappa;
  };
  if (fit.prefill) estimate_.prefill = FittedValue{fit.cp, error({0, 0, 1})};
  if (!fit.load) return;
  estimate_.tl = FittedValue{fit.tl, error({0, 1, 0})};
  estimate_.c = FittedValue{fit.c, error({1, -m.mean[kLoad], fit.prefill ? -m.mean[kPrefill] : 0})};
}

}  // namespace bfio
