// The lookahead hint: survival, corrected by workers' end-of-sequence probabilities as far as these have
// proved reliable. For each of the calibration's lags, every resident has a probe: a hint whose outcome
// within the lag is awaited. When the outcome is known, the next hint replaces the probe. In this way it is
// also learnt how many tokens ahead hints are useful. Beyond the last lag (64 tokens), and for requests
// without a hint, survival is used. Cost: a hint resolves two probes on average, O(1); a projection costs
// what survival's does, plus a few look-ups per resident and lag. Threads: one, as for every Lookahead.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

#include "router/core/lookahead/survival.h"

namespace bfio::core {

// The reliability of workers' hints, learnt from the outcomes after similar hints. A hint is a probability
// that the next token ends a request. Neither its accuracy nor what it implies about later tokens is known
// beforehand. So outcomes are counted per bin of the hint, per lag since the hint (1, 2, 3-4, 5-8, .. 33-64
// tokens) and per octave of survival's probability for that lag.
//   calibrated  the share of requests that ended in the lag, with survival as a prior of kPrior observations
//   blend       the mean of survival and calibrated, weighted per bin and lag by the likelihood that each
//   gave
//               to the outcomes (a two-expert Bayesian mixture; its weight is clamped, so that it recovers
//               when the meaning of hints changes). Its log-loss exceeds survival's by at most a constant, so
//               useless hints cost nothing in the long run.
// Pure, one thread. Cost: O(1) per observation and per look-up.
class HintCalibration {
 public:
  static constexpr int kLags = 7;
  // Lag k is the tokens kEdge[k] + 1 .. kEdge[k + 1] after the hint.
  static constexpr int64_t kEdge[kLags + 1] = {0, 1, 2, 4, 8, 16, 32, 64};
  static constexpr int kHintBins = 18;

  // `memory`: number of recent observations that determine a cell; the decay is exponential.
  explicit HintCalibration(double memory);

  // 0 .. kHintBins - 1. REQUIRES: 0 <= probability <= 1.
  static uint8_t Bin(double probability);

  // The outcome of a request that reached the start of the lag with a hint of this bin: whether it ended
  // within the lag. `base`: survival's probability of that.
  void Observe(int lag, uint8_t bin, double base, bool ended);

  // The probability of ending within the lag, given that its start is reached; `base` is survival's.
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
    // The blend as a linear function of `base`.
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

// A hint covers at most the next 64 tokens, so curves and stays are survival's alone.
class HintLookahead final : public SurvivalLookahead {
 public:
  explicit HintLookahead(const LookaheadOptions& options)
      : SurvivalLookahead(options), calibration_(options.memory_requests) {}

  absl::string_view name() const override { return "hint"; }
  bool uses_hints() const override { return true; }
  void Observe(const Resident& resident, const HintTrail& trail, int64_t from, int64_t to,
               bool finished) override;
  void Hint(Resident& resident, HintTrail& trail, int64_t age, double probability) override;

 private:
  // Survival's probability that a request ends within the lag after age `age`, given that it reaches the
  // lag's start.
  double Base(int32_t group, int64_t age, int lag) const;
  const double* Alive(const Resident& resident, int64_t known_age, int64_t last) override;
  // Sets alive_ to P(length > hint_age + i | length > hint_age). False when the resident has no usable hint.
  bool FillAlive(const Resident& resident, int64_t known_age, int64_t last);

  HintCalibration calibration_;
  // Scratch space.
  std::vector<double> alive_;
};

}  // namespace bfio::core
