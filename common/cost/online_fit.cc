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
// Tukey's constant, in standard deviations: 95 % of least squares' efficiency on normal noise.
constexpr double kCut = 4.685;

bool Varies(const Moments& m, size_t i) {
  const double sd = std::sqrt(std::max(0.0, m.co[i][i]) / m.weight);
  return sd > 0 && sd >= OnlineStepFit::kMinSpread * m.mean[i];
}

}  // namespace

OnlineStepFit::OnlineStepFit(double memory_steps)
    : memory_steps_(memory_steps), forget_(1 - 1 / memory_steps) {
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
  Moments all = moments_;
  for (int i = 0; i < kBlock; ++i) all.Add(block_[i], fade_[i] * weights[i]);
  return all;
}

Line<2> OnlineStepFit::Fit(const Moments& m) const {
  unsigned terms = Varies(m, kLoad) ? TermBit(kLoad) : 0;
  if (prefill_steps_ >= kMinPrefillSteps && Varies(m, kPrefill)) terms |= TermBit(kPrefill);
  return FitLine(m, terms);
}

double OnlineStepFit::ScaleOf(const Line<2>& fit) const {
  std::array<double, kBlock> absolute;
  double time = 0;
  for (int i = 0; i < kBlock; ++i) {
    absolute[i] = std::abs(block_[i][kTime] - fit.At(block_[i]));
    time += block_[i][kTime] / kBlock;
  }
  std::nth_element(absolute.begin(), absolute.begin() + kBlock / 2, absolute.end());
  return std::max(kMadToSigma * absolute[kBlock / 2], kScaleFloor * time);
}

void OnlineStepFit::EndBlock() {
  const double faded = std::pow(forget_, kBlock);
  moments_.Scale(faded);
  prefill_steps_ *= faded;
  for (int i = 0; i < kBlock; ++i) {
    if (block_[i][kPrefill] > 0) prefill_steps_ += fade_[i];
  }
  Weights weights;
  weights.fill(1);
  Line<2> fit = Fit(With(weights));
  for (int round = 0; round < kHuberRounds + kBisquareRounds; ++round) {
    const double scale = std::max(scale_, ScaleOf(fit));
    for (int i = 0; i < kBlock; ++i) {
      const double z = std::abs(block_[i][kTime] - fit.At(block_[i])) / std::max(scale, 1e-300);
      if (round < kHuberRounds) {
        weights[i] = z <= kHuberCut ? 1 : kHuberCut / z;
      } else {
        const double u = z / kCut;
        weights[i] = u >= 1 ? 0 : (1 - u * u) * (1 - u * u);
      }
    }
    fit = Fit(With(weights));
  }
  moments_ = With(weights);
  // Computed from this block alone, so that a scale that a change of the cost has inflated does not persist.
  const double present = ScaleOf(fit);
  scale_ = blocks_ == 0 ? present : scale_ + std::min(1.0, 4 * kBlock / memory_steps_) * (present - scale_);
  ++blocks_;
  size_ = 0;
  SetEstimate(fit);
}

void OnlineStepFit::SetEstimate(const Line<2>& fit) {
  estimate_ = {};
  const Moments& m = moments_;
  if (m.weight < kMinSteps || !Varies(m, kLoad)) return;
  // The part of the load that the prompts do not explain.
  const double both = m.co[kPrefill][kPrefill] > 0
                          ? m.co[kLoad][kPrefill] / m.co[kPrefill][kPrefill] * m.co[kLoad][kPrefill]
                          : 0;
  const double own = std::max(kMinRest * m.co[kLoad][kLoad], m.co[kLoad][kLoad] - both);
  const double variance = fit.rest / std::max(1.0, m.weight - 3), error = std::sqrt(variance / own);
  estimate_.tl = FittedValue{fit.slopes[kLoad], error};
  estimate_.c = FittedValue{fit.c, std::hypot(std::sqrt(variance / m.weight), m.mean[kLoad] * error)};
}

}  // namespace bfio
