// The reliability of a worker's hints, learnt from the outcomes after similar hints.
//
// Purpose: a hint is a probability that the next token ends a request. What it says about the tokens after
// that is not known beforehand, nor whether it is right at all. So outcomes are counted per bin of the hint,
// per lag since the hint (1, 2, 3-4, 5-8, .. 33-64 tokens) and per octave of what survival says for that lag.
//   calibrated  share of requests that ended in the lag, leaning on survival (kPrior observations strong).
//   blend       survival and calibrated, weighted per bin and lag by how likely each has made what happened
//               (a two-expert Bayesian mixture; its weight is clamped, so that it recovers when hints change
//               their meaning). Its log-loss exceeds survival's by a constant at most: useless hints cost
//               nothing in the long run.
// Pure, one thread. Cost: O(1) an observation and a look-up.
#ifndef BFIO_ROUTER_CORE_LOOKAHEAD_HINT_CALIBRATION_H_
#define BFIO_ROUTER_CORE_LOOKAHEAD_HINT_CALIBRATION_H_

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

namespace bfio::core {

class HintCalibration {
 public:
  static constexpr int kLags = 7;
  // Lag k is the tokens kEdge[k] + 1 .. kEdge[k + 1] after the hint.
  static constexpr int64_t kEdge[kLags + 1] = {0, 1, 2, 4, 8, 16, 32, 64};
  static constexpr int kHintBins = 18;

  // `memory`: observations a cell looks back on, with exponential decay.
  explicit HintCalibration(double memory);

  // 0 .. kHintBins - 1. REQUIRES: 0 <= probability <= 1.
  static uint8_t Bin(double probability);

  // Of requests that got past the start of the lag with this bin, one ended within the lag or not; survival
  // had given it the probability `base` of ending.
  void Observe(int lag, uint8_t bin, double base, bool ended);

  // The probability of ending within the lag, given that it gets past its start; `base` is survival's.
  double Blend(int lag, uint8_t bin, double base) const {
    const Cell& cell = cells_[Index(lag, bin, base)];
    return std::min(cell.constant + cell.slope * base, 1.0);
  }

 private:
  // Octaves of survival's probability: 1 .. 2^-12.
  static constexpr int kBaseBins = 12;
  struct Cell {
    double seen = 0;
    double ended = 0;
    // The blend as a line in `base`.
    double constant = 0;
    double slope = 1;
  };

  static size_t Index(int lag, uint8_t bin, double base) {
    const int exponent = 1022 - static_cast<int>(std::bit_cast<uint64_t>(base) >> 52);
    return (static_cast<size_t>(lag) * kHintBins + bin) * kBaseBins +
           static_cast<size_t>(std::clamp(exponent, 0, kBaseBins - 1));
  }
  void SetLine(Cell& cell, double log_odds) const;

  double keep_;
  std::vector<Cell> cells_;
  // [lag][bin]: log odds of calibrated against survival.
  std::vector<double> log_odds_;
};

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_LOOKAHEAD_HINT_CALIBRATION_H_
