// A rank whose tokens the router carries. The tokens of a step arrive together, and become a step report: the
// load of a request is its prompt and the tokens received, and a request without its first token is a prompt
// that is not computed. The steps that an engine reports (OnStep) replace the estimates until it has been
// silent for kFollows. docs/design/engine-ranks.md has the rules. Ownership and threads: as EngineRank.
#pragma once

#include "common/cost/batch_time.h"
#include "router/core/model/slot_credit.h"
#include "router/engine_link/engine_rank.h"

namespace bfio::router {

class StreamedRank final : public EngineRank {
 public:
  // The share of a usual step within which its tokens arrive: measured on vLLM, 1 to 3 ms of steps of 4
  // to 16.
  static constexpr double kGatherShare = 0.25;
  // Bounds of that wait; the first one holds before a step has been seen.
  static constexpr absl::Duration kShortestGather = absl::Milliseconds(1);
  static constexpr absl::Duration kLongestGather = absl::Milliseconds(20);
  static constexpr absl::Duration kQuietStep = absl::Milliseconds(500);
  static constexpr int64_t kSilentSteps = 64;
  static constexpr int kQuietWithoutLoads = 10;

  explicit StreamedRank(const Options& options = {})
      // One slot always remains for the router, whatever an engine reports.
      : EngineRank(options, ReportedLoad(options.slots - 1, options.kv_tokens)) {}

  void OnEpoch(const EpochOffer& offer, absl::Time now, Output& out) override;
  void OnTokens(CallNumber number, EngineTokens tokens, absl::Time now, Output& out) override;
  void OnStep(const EngineStep& step, absl::Time now, Output& out) override;
  std::optional<int64_t> Allotment() const override;
  void OnRoundTrip(absl::Duration round_trip) override { round_trip_ = round_trip; }
  void OnLoad(std::optional<EngineLoad> load, absl::Time now, Output& out) override;

 private:
  void Begin(Call& call, const EngineCall& from, absl::Time now) override;
  void OnCallsChanged() override;
  void OnLeft(const Call& call) override { awaited_ -= int64_t{call.awaited}; }
  void OnEnd(Call& call, absl::Time now, Output& out) override;
  absl::Duration LongestQuiet() const override;
  absl::Time StepDeadline() const override;
  void EndStep(absl::Time now, Output& out) override;

  // Called after each change of a call: every request that has generated tokens generates some in each step.
  void Await(Call& call);
  // At least one request has generated tokens, by the engine's report, and has not ended.
  bool AnyDecodes() const;
  // It is still to be computed.
  static bool IsPrompt(const Call& call) {
    return call.generated == 0 && call.tokens.empty() && !call.computed && !call.refused;
  }
  // The longest prompt that is still to be computed, on the rank and on all ranks of its barrier; 0: none.
  int64_t LongestPrompt() const;
  // The engine seems to have lost it.
  bool Lost(const Call& call, absl::Time now) const;
  // The tokens that have come belong to the step that was reported last.
  bool Late(absl::Time now) const;
  // Number of requests that may wait inside the engine.
  int32_t Credit() const;
  // The batch of a step that ends with tokens; empty where the engine has reported it.
  BatchLoad TakeBatch(bool reported);
  // Ends the step if it is complete.
  void AfterTokens(absl::Time now, Output& out);

  // Number of awaited calls; the longest prompt that is still to be computed. Kept up to date, because every
  // message of every request reads them.
  int64_t awaited_ = 0, own_prompt_ = 0;
  // For an engine that reports steps: its last step, and the decodes of that; its budget.
  int64_t heard_step_ = 0;
  int64_t decodes_ = 0, decode_context_ = 0;
  int64_t token_budget_ = 0;
  // Prompt tokens that the engine has reported since the last report.
  int64_t prompt_tokens_ = 0;

  absl::Time first_token_at_ = absl::InfiniteFuture(), last_tokens_at_ = absl::InfinitePast();
  // Mean time between steps with tokens; zero: unknown.
  absl::Duration usual_step_;
  core::SlotCredit credit_;
  absl::Duration round_trip_;
  // Number of reports with tokens, without those of late ones; of steps with tokens.
  int64_t token_reports_ = 0, token_steps_ = 0;
};

}  // namespace bfio::router
