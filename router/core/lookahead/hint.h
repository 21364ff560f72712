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

#include "router/core/lookahead/hint_calibration.h"
#include "router/core/lookahead/lookahead.h"
#include "router/core/lookahead/survival_model.h"

namespace bfio::core {

class HintLookahead final : public Lookahead {
 public:
  explicit HintLookahead(const LookaheadOptions& options)
      : model_(options), calibration_(options.memory_requests) {}

  absl::string_view name() const override { return "hint"; }
  bool learns() const override { return true; }
  bool uses_hints() const override { return true; }
  int32_t GroupOf(uint32_t tenant, int64_t prompt_tokens) override {
    return model_.GroupOf(tenant, prompt_tokens);
  }
  void Observe(const Resident& resident, const HintTrail& trail, int64_t from, int64_t to,
               bool finished) override;
  void Hint(Resident& resident, HintTrail& trail, int64_t age, double probability) override;
  void Advance() override { model_.Advance(); }
  void Project(absl::Span<const Resident> residents, const PlanTime& time, absl::Span<double> load) override;
  uint64_t CurveKey(const WaitingView& request, int32_t horizon) override;
  void Curve(const WaitingView& request, absl::Span<double> row) override;
  // Uses survival alone, because a hint covers at most the next 64 tokens.
  int64_t Stay(const Resident& resident, const PlanTime& time, absl::Span<const int64_t> steps,
               absl::Span<double> alive) const override;
  int64_t Stay(const WaitingView& request, absl::Span<const int64_t> steps,
               absl::Span<double> alive) override;

  const SurvivalModel& model() const { return model_; }

 private:
  // Survival's probability that a request ends within the lag after age `age`, given that it reaches the
  // lag's start.
  double Base(int32_t group, int64_t age, int lag) const;
  // Sets alive_[i] = P(length > known age + i | length > known age), i = 0 .. last. False when the resident
  // has no usable hint.
  bool FillAlive(const Resident& resident, int64_t known_age, int64_t last);

  SurvivalModel model_;
  HintCalibration calibration_;
  // Scratch space.
  std::vector<double> alive_;
};

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_LOOKAHEAD_HINT_H_
