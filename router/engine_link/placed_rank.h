// A rank whose tokens someone else carries, such as Envoy: the router learns when a request ends, and from
// time to time what the engine counts. A step is the time in which a running request generates a token, which
// follows from the tokens counted and the requests that ran meanwhile, or from the steps that the engine
// reports (OnStep), while both agree; a report covers the steps since the last one, none or many.
// docs/design/engine-ranks.md has the rules. Ownership and threads: as EngineRank.
#pragma once

#include <algorithm>

#include "router/engine_link/engine_rank.h"

namespace bfio::router {

class PlacedRank final : public EngineRank {
 public:
  // Steps and time after which what the engine reports of them is checked against what it counts: on a busy
  // machine vLLM's counts are late by a second.
  static constexpr int64_t kCheckSteps = 16;
  static constexpr absl::Duration kCheckEvery = absl::Seconds(5);

  // `running`: what the engine runs now.
  explicit PlacedRank(const Options& options = {}, const std::optional<EngineLoad>& running = std::nullopt)
      : EngineRank(options, ReportedLoad(options.slots, options.kv_tokens, running)) {}

  void OnEpoch(const EpochOffer& offer, absl::Time now, Output& out) override;
  void OnStep(const EngineStep& step, absl::Time now, Output& out) override;
  void OnLoad(std::optional<EngineLoad> load, absl::Time now, Output& out) override;

 private:
  // On trial it gets none while the engine still has requests that may never end.
  int64_t MostCalls() const override {
    const int64_t left = options_.slots - load_.others();
    return on_trial() ? int64_t{left == options_.slots} : left;
  }
  bool AcknowledgesPlans() const override { return true; }
  void Begin(Call& call, const EngineCall& from, absl::Time now) override;
  void OnEnd(Call&, absl::Time now, Output& out) override {
    // A report would say that it works.
    if (open() && !Hangs(now)) EndStep(now, out);
  }
  bool CountsTokens() const override { return load_.last() && load_.last()->generated.has_value(); }
  void EndStep(absl::Time now, Output& out) override;

  // At least those that have been reported, and not so many more that the group would not believe it.
  int64_t Steps() const {
    constexpr int64_t kMost = int64_t{1} << 20;
    return step_ + static_cast<int64_t>(std::clamp(steps_ - static_cast<double>(step_), 0.0, double{kMost}));
  }
  // Predicts the steps until now.
  void Advance(absl::Time now);
  // Corrects them by the engine's count of generated tokens.
  void TakeCount(const std::optional<EngineLoad>& load, absl::Time now, Output& out);
  // Decides whether reported steps are believed.
  void CheckSteps(absl::Time now, Output& out);
  bool FollowsSteps(absl::Time now) const { return believed_ && Follows(now); }

  // Steps of the epoch, as predicted, and when.
  double steps_ = 0;
  absl::Time advanced_at_ = absl::InfinitePast();
  // Zero: unknown.
  absl::Duration usual_step_;
  // The engine's last count, and the steps then; the time since then in which requests ran, and the sum of
  // that time over the requests.
  std::optional<int64_t> counted_;
  double counted_steps_ = 0;
  absl::Duration ran_, requests_ran_;
  // The number of the last reported step; what has been reported since `checked_at`, when the engine had
  // counted `counted`; and whether that agrees with what it counts.
  std::optional<int64_t> heard_step_;
  struct {
    absl::Time checked_at;
    int64_t counted = 0, steps = 0, decodes = 0, prefills = 0, most = 0;
    absl::Duration took, longest;
  } heard_;
  bool believed_ = false, doubted_ = false;
};

}  // namespace bfio::router
