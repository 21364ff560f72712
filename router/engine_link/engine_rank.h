// One rank of an engine, as a worker of a group. A group works with workers that apply plans and report steps
// (worker_messages.h); an engine has requests, and at best streams of tokens. This is what a rank is however
// its steps are known: its calls from their placement to their end, its load, refusals, and whether it works
// at all. The kinds say how steps are known, and so what the reports contain:
//
//   StreamedRank  the router carries the tokens: steps are inferred from them, or the engine reports them
//   PlacedRank    someone else carries them, such as Envoy: steps are predicted, and corrected by loads
//
// docs/design/engine-ranks.md has the rules. Epochs: the group takes no reports between EpochReady and the
// epoch's first plan; what comes is kept. Ownership: owns its state; borrows the barrier's; no I/O. Threads:
// one. Deterministic: the same events at the same times give the same outputs.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "router/engine_link/engine_barrier.h"
#include "router/engine_link/engine_call.h"
#include "router/engine_link/engine_steps.h"
#include "router/engine_link/rank_load.h"
#include "router/group/worker_messages.h"

namespace bfio::router {

class EngineRank {
 public:
  // How long a rank reports after the last sign that the engine works: the larger of these two, or the time
  // of the longest prompt at kSlowestPrefill tokens per second: no usable vLLM is slower (not measured).
  static constexpr absl::Duration kLongestQuiet = absl::Seconds(60);
  static constexpr int kQuietStepTimeouts = 6;
  static constexpr int64_t kSlowestPrefill = 1000;
  // How long a step that the engine has reported counts as recent. Such an engine sends about four a second
  // (BFIO_ROUTER_SILENCE_S), or one per step.
  static constexpr absl::Duration kFollows = absl::Seconds(2);
  // For a refused request; the last one also bounds the delay that the engine gives (RetryInfo).
  static constexpr absl::Duration kShortestRefusal = absl::Milliseconds(50);
  static constexpr absl::Duration kLongestRefusal = absl::Seconds(2);
  static constexpr absl::Duration kLongestRetryInfo = absl::Seconds(5);

  struct Options {
    int32_t slots = 1;
    int64_t kv_tokens = 0;
    // For a streamed rank in a barrier: tokens of a step, prompts and decodes; the barrier, and the rank's
    // number in it. Null: the rank steps independently.
    int64_t token_budget = 0;
    EngineBarrier* barrier = nullptr;
    uint64_t number = 0;
    // It has been cut off because it was silent. Until it shows that it works, it takes one request, and
    // returns others (NotTried), which could be lost with it.
    bool on_trial = false;
  };

  struct StartCall {
    CallNumber number = 0;
    EngineCall call;
  };
  // In the order in which they must be carried out.
  struct Output {
    std::vector<EpochReady> ready;
    std::vector<StepReport> reports;
    std::vector<StartCall> start;
    std::vector<CallNumber> cancel;
    // What is wrong with the rank, in one line; mostly empty.
    std::string warning;
  };
  // A placement of a plan, or the error that prevents it.
  struct Placement {
    core::RequestId id = 0;
    absl::StatusOr<EngineCall> call;
  };

  virtual ~EngineRank() = default;

  virtual void OnEpoch(const EpochOffer& offer, absl::Time now, Output& out);
  void OnPlan(const PlanPart& plan, std::vector<Placement> placements, absl::Time now, Output& out);

  // Events of calls that were cancelled are ignored.
  virtual void OnTokens(CallNumber, EngineTokens, absl::Time, Output&) {}
  void OnFinished(CallNumber number, EngineEnd end, absl::Time now, Output& out);
  void OnFailed(CallNumber number, const absl::Status& status, absl::Time now, Output& out);

  // The engine reports a step; `step.prompts` has only prompts of this rank.
  virtual void OnStep(const EngineStep&, absl::Time, Output&) {}
  // Prompt tokens that a step may compute under the plan's level; none: no limit.
  virtual std::optional<int64_t> Allotment() const { return std::nullopt; }

  virtual void OnRoundTrip(absl::Duration) {}
  // The engine's report of the rank; empty: the engine sends none, or sent none in time.
  virtual void OnLoad(std::optional<EngineLoad> load, absl::Time now, Output& out) = 0;

  bool on_trial() const { return on_trial_; }

  // Acts when next_deadline() has passed.
  void OnTimer(absl::Time now, Output& out);
  absl::Time next_deadline() const;

  int32_t active() const { return static_cast<int32_t>(calls_.size()); }

 protected:
  struct Call {
    core::RequestId id = 0;
    int64_t prompt_tokens = 0;
    int64_t max_new_tokens = 0;
    // The router has sent a hand-off with it, or another rank waits for its prompt.
    bool from_hand_off = false;
    // Received and reported before the present step.
    int64_t generated = 0;
    // Tokens and messages of the present step; the end.
    std::vector<uint32_t> tokens;
    std::vector<PassedPtr> messages;
    std::optional<FinishReason> finished;
    // The engine has refused the request; when that is reported to the group. Refusals before this placement.
    std::optional<absl::Status> refused;
    absl::Time refused_until;
    int32_t refusals = 0;
    // The step in which it was placed; of a streamed rank the first of token_steps_ that computes its prompt.
    int64_t first_step = 0;

    // --- of a streamed rank ---

    // Remaining prompt tokens, as estimated.
    int64_t prompt_left = 0;
    // The engine has reported that its prompt is computed.
    bool computed = false;
    // Prompt tokens that the engine found in its cache, where that is not reported yet.
    std::optional<int64_t> cached;
    // The last of token_reports_ that had tokens of it.
    int64_t token_report = 0;
    // The present step is complete only after something of this call has come.
    bool awaited = false;
    // When a message or a report of its prompt came last; token_reports_ then.
    absl::Time heard_at;
    int64_t heard_report = 0;
  };

  EngineRank(const Options& options, ReportedLoad load)
      : options_(options), load_(std::move(load)), on_trial_(options.on_trial) {}
  EngineRank(EngineRank&&) = default;
  EngineRank& operator=(EngineRank&&) = default;

  // --- what a kind adds ---

  // Number of calls that it takes.
  virtual int64_t MostCalls() const { return on_trial_ ? 1 : std::numeric_limits<int64_t>::max(); }
  // A plan is acknowledged at once, and not with the step in which it is applied.
  virtual bool AcknowledgesPlans() const { return false; }
  virtual void Begin(Call& call, const EngineCall& from, absl::Time now) = 0;
  virtual void OnCallsChanged() {}
  // The engine has refused it, or it is forgotten.
  virtual void OnLeft(const Call&) {}
  virtual void OnEnd(Call& call, absl::Time now, Output& out) = 0;
  // The engine counts the tokens that it generates, and only they are signs of work: a client that leaves
  // ends its request too, and frees memory.
  virtual bool CountsTokens() const { return false; }
  // The longest time without a sign of work that indicates no fault.
  virtual absl::Duration LongestQuiet() const;
  // When the present step ends without further events.
  virtual absl::Time StepDeadline() const { return absl::InfiniteFuture(); }
  // Reports what there is.
  virtual void EndStep(absl::Time now, Output& out) = 0;

  // --- for reports ---

  // The group takes reports.
  bool open() const { return plans_ > 0; }
  StepReport BeginReport(int64_t step);
  // Forgets the calls that have ended.
  void SendReport(StepReport report, absl::Time now, Output& out);

  // --- calls and loads ---

  // Null: it has ended.
  Call* Find(CallNumber number);
  // Number of calls that the engine has not refused.
  int64_t InEngine() const { return std::ssize(calls_) - refused_; }
  bool Hangs(absl::Time now) const { return InEngine() > 0 && now >= worked_at_ + LongestQuiet(); }
  void Worked(absl::Time now) { worked_at_ = now, on_trial_ = false; }
  void TakeLoad(std::optional<EngineLoad> load, absl::Time now);
  // The engine reports its steps (it has done so within kFollows).
  bool Follows(absl::Time now) const { return now - heard_at_ < kFollows; }
  // It has not been passed on, and no other report goes with which it would.
  bool LoadIsNew() const {
    return calls_.empty() && (told_load_ != load_.last() || cache_lost_ppm_ > 0 || !cache_changes_.empty());
  }

  Options options_;
  ReportedLoad load_;
  // By number, which is the order of arrival.
  std::map<CallNumber, Call> calls_;
  int64_t step_ = 0;
  // A plan has come that no report has acknowledged yet; its level, and the step in which it came.
  bool owed_ = false;
  std::optional<double> level_s_;
  int64_t level_step_ = 0;
  // The last sign that the engine works on its requests, or the time when it got the first of them; later by
  // the time without requests, where it counts tokens.
  absl::Time worked_at_ = absl::InfinitePast(), last_report_at_ = absl::InfinitePast();
  // The larger of kLongestQuiet and kQuietStepTimeouts.
  absl::Duration longest_quiet_ = kLongestQuiet;
  bool on_trial_ = false;
  // When the engine has reported a step last.
  absl::Time heard_at_ = absl::InfinitePast();

 private:
  // Ends the calls for which which(number, call) is true, at the request of the router or of the engine. If a
  // call that may take longer delayed the end of quiet for the others, their own time starts now.
  template <typename Which>
  void Drop(absl::Time now, Which which);
  void Cancel(absl::Span<const core::RequestId> ids, absl::Time now, Output& out);
  void Reject(core::RequestId id, absl::Status status) { rejected_.push_back({id, std::move(status)}); }

  int64_t refused_ = 0;
  CallNumber next_call_ = 1;
  uint64_t epoch_ = 0;
  // Number of this epoch's plans that have come, and the largest apply_step among them.
  int64_t plans_ = 0, applied_plan_ = 0;
  // Since the last report: requests that ended, failed, or were removed.
  std::vector<RejectedRequest> rejected_;
  std::vector<core::RequestId> preempted_;
  std::vector<StepReport::HandedOver> handed_over_;
  // Of EngineLoad, since the last report.
  int64_t cache_lost_ppm_ = 0;
  std::vector<core::PrefixChange> cache_changes_;
  // The version of the batches' cost that was reported last.
  int64_t told_cost_ = 0;
  // The load that was passed on last; calls have begun or ended since the last one.
  std::optional<EngineLoad> told_load_;
  bool calls_changed_ = false;
};

}  // namespace bfio::router
