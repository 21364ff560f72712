// The lookahead hint: survival, corrected by workers' end-of-sequence probabilities as far as these have
// proved reliable (hint_calibration.h).
//
// For each of the calibration's lags, every resident has a probe: a hint whose outcome within the lag is
// awaited. When the outcome is known, the next hint replaces the probe. In this way it is also learnt how
// many tokens ahead hints are useful. Beyond the last lag (64 tokens), and for requests without a hint,
// survival is used.
//
// Cost: a hint resolves two probes on average, O(1); a projection costs what survival's does, plus a few
// look-ups per resident and lag. Threads: one, as for every Lookahead.
#ifndef BFIO_ROUTER_CORE_LOOKAHEAD_HINT_H_
#define BFIO_ROUTER_CORE_LOOKAHEAD_HINT_H_

#include <vector>

#include "router/core/lookahead/hint_calibration.h"
#include "router/core/lookahead/survival.h"

namespace bfio::core {

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

#endif  // BFIO_ROUTER_CORE_LOOKAHEAD_HINT_H_
