#include "router/core/lookahead/hint_calibration.h"

#include <cmath>

namespace bfio::core {
namespace {

// Weight of survival's probability in a cell, in observations.
constexpr double kPrior = 8;
// Initial log odds, 20 to 1 in favour of survival; and their limit in both directions.
constexpr double kFirstLogOdds = -3;
constexpr double kMostLogOdds = 6;
// Bounds the effect of one unlikely outcome.
constexpr double kLeastProbability = 1e-4;

}  // namespace

HintCalibration::HintCalibration(double memory)
    : keep_(1 - 1 / std::max(2.0, memory)),
      cells_(size_t{kLags} * kHintBins * kBaseBins),
      log_odds_(size_t{kLags} * kHintBins, kFirstLogOdds) {}

uint8_t HintCalibration::Bin(double probability) {
  // Octaves of p for p up to 0.5 (down to 2^-12), and of 1 - p above (down to 2^-6).
  int exponent = 0;
  if (probability <= 0.5) {
    std::frexp(probability, &exponent);  // p in [2^(e-1), 2^e)
    return static_cast<uint8_t>(probability <= 0 ? 0 : std::clamp(exponent + 11, 0, 11));
  }
  std::frexp(1 - probability, &exponent);
  return static_cast<uint8_t>(probability >= 1 ? kHintBins - 1
                                               : std::clamp(11 - exponent, 12, kHintBins - 1));
}

void HintCalibration::SetLine(Cell& cell, double log_odds) const {
  const double weight = 1 / (1 + std::exp(-log_odds)), total = cell.seen + kPrior;
  cell.constant = weight * cell.ended / total;
  cell.slope = 1 - weight + weight * kPrior / total;
}

void HintCalibration::Observe(int lag, uint8_t bin, double base, bool ended) {
  Cell& cell = cells_[Index(lag, bin, base)];
  double& log_odds = log_odds_[static_cast<size_t>(lag) * kHintBins + bin];
  const auto likelihood = [&](double p) { return std::max(ended ? p : 1 - p, kLeastProbability); };
  const double calibrated = (cell.ended + kPrior * base) / (cell.seen + kPrior);
  log_odds =
      std::clamp(log_odds + std::log(likelihood(calibrated) / likelihood(base)), -kMostLogOdds, kMostLogOdds);
  cell.seen = cell.seen * keep_ + 1;
  cell.ended = cell.ended * keep_ + (ended ? 1 : 0);
  SetLine(cell, log_odds);
}

}  // namespace bfio::core
