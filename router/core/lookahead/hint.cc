#include "router/core/lookahead/hint.h"

#include <algorithm>

namespace bfio::core {
namespace {

using Calibration = HintCalibration;
static_assert(HintTrail::kProbes == Calibration::kLags);
static_assert(Calibration::kHintBins < kNoHint);

// Below this, a ratio of two survival probabilities is meaningless.
constexpr double kNobodyLeft = 1e-200;

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

}  // namespace bfio::core
