#include "router/core/lookahead/hint.h"

#include <cmath>

namespace bfio::core {
namespace {

using Calibration = HintCalibration;
static_assert(HintTrail::kProbes == Calibration::kLags);
static_assert(Calibration::kHintBins < kNoHint);

// Below this, a ratio of two survival probabilities is meaningless.
constexpr double kNobodyLeft = 1e-200;

// Weight of survival's probability in a cell, in observations.
constexpr double kPrior = 8;
// Initial log odds, 20 to 1 in favour of survival; and their limit in both directions.
constexpr double kFirstLogOdds = -3;
constexpr double kMostLogOdds = 6;
// Bounds the effect of one unlikely outcome.
constexpr double kLeastProbability = 1e-4;

}  // namespace

double HintLookahead::Base(int32_t group, int64_t age, int lag) const {
  const double* const table = model().Table(group).From(age);
  const double start = table[Calibration::kEdge[lag]];
  return start > kNobodyLeft ? 1 - table[Calibration::kEdge[lag + 1]] / start : 1;
}

void HintLookahead::Observe(const Resident& resident, const HintTrail& trail, int64_t from, int64_t to,
                            bool finished) {
  SurvivalLookahead::Observe(resident, trail, from, to, finished);
  if (!finished) return;
  for (int k = 0; k < HintTrail::kProbes; ++k) {
    if (trail.bin[k] == kNoHint) continue;
    const int64_t lag = to - trail.age[k];
    if (lag <= Calibration::kEdge[k]) continue;  // the request did not reach the start of the lag
    calibration_.Observe(k, trail.bin[k], Base(resident.group, trail.age[k], k),
                         lag <= Calibration::kEdge[k + 1]);
  }
}

void HintLookahead::Hint(Resident& resident, HintTrail& trail, int64_t age, double probability) {
  const uint8_t bin = Calibration::Bin(std::clamp(probability, 0.0, 1.0));
  resident.hint_bin = bin;
  resident.hint_age = static_cast<int32_t>(age);
  // An end by max_new_tokens carries no information about hints.
  const int64_t cap = resident.generated_tokens + resident.max_new_tokens;
  for (int k = 0; k < HintTrail::kProbes; ++k) {
    const int64_t reach = Calibration::kEdge[k + 1];
    if (trail.bin[k] != kNoHint) {
      if (age < trail.age[k] + reach) continue;
      calibration_.Observe(k, trail.bin[k], Base(resident.group, trail.age[k], k), false);
    }
    trail.bin[k] = age + reach < cap ? bin : kNoHint;
    trail.age[k] = static_cast<int32_t>(age);
  }
}

bool HintLookahead::FillAlive(const Resident& resident, int64_t known_age, int64_t last) {
  const int64_t past = known_age - resident.hint_age;  // tokens since the hint
  if (resident.hint_bin == kNoHint || past < 0 || past >= Calibration::kEdge[Calibration::kLags])
    return false;
  const double* const table = model().Table(resident.group).From(resident.hint_age);
  const int64_t end = past + last;  // lag of the last entry
  if (!(table[std::min(end, Calibration::kEdge[Calibration::kLags])] > kNobodyLeft)) return false;
  if (alive_.size() <= static_cast<size_t>(end)) alive_.resize(static_cast<size_t>(end) + 1);
  double* const __restrict alive = alive_.data();
  alive[0] = 1;
  int64_t lag = 1;
  for (int k = 0; k < Calibration::kLags && lag <= end; ++k) {
    const double inverse = 1 / table[lag - 1], base = 1 - table[Calibration::kEdge[k + 1]] * inverse;
    const double bend = base > 0 ? calibration_.Blend(k, resident.hint_bin, base) / base : 1;
    // alive at the start * (1 - bend * (1 - table[lag] / table at the start))
    const double start = alive[lag - 1], constant = start - start * bend, slope = start * bend * inverse;
    for (const int64_t stop = std::min(end, Calibration::kEdge[k + 1]); lag <= stop; ++lag) {
      alive[lag] = constant + slope * table[lag];
    }
  }
  const double slope = table[lag - 1] > kNobodyLeft ? alive[lag - 1] / table[lag - 1] : 0;
  for (; lag <= end; ++lag) alive[lag] = slope * table[lag];
  return alive[past] > 0;
}

const double* HintLookahead::Alive(const Resident& resident, int64_t known_age, int64_t last) {
  return FillAlive(resident, known_age, last) ? alive_.data() + (known_age - resident.hint_age)
                                              : SurvivalLookahead::Alive(resident, known_age, last);
}

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
