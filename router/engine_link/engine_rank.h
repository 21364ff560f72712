// One rank of an engine, as a worker of a group. Works with engines that do not report their steps. A group
// works with workers that apply plans and report steps (worker_messages.h). An engine such as vLLM has
// requests and streams of tokens. This state machine translates: plans become calls, and the tokens of a
// step, which arrive together, become a step report. The group's accounts stay exact: the load of a request
// is its prompt and the tokens received, and a request without its first token is reported as a prompt that
// is not computed. docs/design/engine-ranks.md says how steps, prompts, slots, lost requests and shared
// memory are inferred.
//
// Engines that follow the router (OnStep) report their steps; the reports replace the estimates until the
// engine has been silent for kFollows. Epochs. The group takes no reports between EpochReady and the epoch's
// first plan: tokens are kept here. Ownership: owns its state; borrows the barrier's cost; no I/O. Threads:
// one. Deterministic: the same events at the same times give the same outputs.
#ifndef BFIO_ROUTER_ENGINE_LINK_ENGINE_RANK_H_
#define BFIO_ROUTER_ENGINE_LINK_ENGINE_RANK_H_

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/cost/batch_time.h"
#include "router/engine_link/engine_barrier.h"
#include "router/engine_link/engine_call.h"
#include "router/engine_link/engine_steps.h"
#include "router/group/worker_messages.h"

namespace bfio::router {

class EngineRank {
 public:
  // The share of a usual step within which its tokens arrive: measured on vLLM, 1 to 3 ms of steps of 4
  // to 16.
  static constexpr double kGatherShare = 0.25;
  // Bounds of that wait; the first one holds before a step has been seen.
  static constexpr absl::Duration kShortestGather = absl::Milliseconds(1);
  static constexpr absl::Duration kLongestGather = absl::Milliseconds(20);
  static constexpr absl::Duration kQuietStep = absl::Milliseconds(500);
  // Between reports of a rank without a barrier whose outputs all come whole: nothing waits for its steps.
  static constexpr absl::Duration kEstimates = absl::Milliseconds(50);
  // How long steps without tokens are reported after the last sign that the engine works: the larger of these
  // two, or, if longer, the time of the longest prompt at kSlowestPrefill tokens per second. Not measured: no
  // usable vLLM computes prompts more slowly.
  static constexpr absl::Duration kLongestQuiet = absl::Seconds(60);
  static constexpr int kQuietStepTimeouts = 6;
  static constexpr int64_t kSlowestPrefill = 1000;
  // For outputs that come whole, as above. Not measured: steps of a full rank take several times as long as
  // those of an empty one.
  static constexpr int kSlowerSteps = 10;
  static constexpr absl::Duration kSlowestStep = absl::Seconds(1);
  // For a refused request; the last one also bounds the delay that the engine gives (RetryInfo).
  static constexpr absl::Duration kShortestRefusal = absl::Milliseconds(50);
  static constexpr absl::Duration kLongestRefusal = absl::Seconds(2);
  static constexpr absl::Duration kLongestRetryInfo = absl::Seconds(5);
  static constexpr int64_t kSilentSteps = 64;
  static constexpr int kQuietWithoutLoads = 10;
  // How long a report of the engine counts as recent. It sends about four a second (BFIO_ROUTER_SILENCE_S).
  static constexpr absl::Duration kFollows = absl::Seconds(2);
  // Longer than most steps, and shorter than the interval of GetLoads. Load records come up to once a step.
  static constexpr absl::Duration kLoadWindow = absl::Milliseconds(500);

  // A slot that waits for the router's next request is empty for a round trip and a step. Requests wait in
  // the engine for such slots only where these would be more than this share of all slots: below it, the gain
  // in throughput is smaller than the loss from choosing the rank earlier.
  static constexpr double kLeastEmptyShare = 0.005;

  struct Options {
    int32_t slots = 1;
    int64_t kv_tokens = 0;
    // For a rank in a barrier: tokens of a step, prompts and decodes; the fit of the batches' cost, and the
    // rank's number in it. Null: the rank steps independently.
    int64_t token_budget = 0;
    BarrierCost* barrier = nullptr;
    uint64_t number = 0;
    // Compares the rank's steps with those of the other ranks; may be null.
    BarrierWatch* watch = nullptr;
    // The prompts of all ranks of the barrier; may be null.
    BarrierPrompts* prompts = nullptr;
    // The engine has been cut off because it was silent. Until it delivers tokens, or reports work, the rank
    // takes one request, and returns others (NotTried), which could be lost with it.
    bool on_trial = false;
    // The value of load_shows_work() of another rank, or connection, of the engine.
    bool load_shows_work = false;
    // What the engine has reported of the rank before, if it has: it may run requests that an earlier router
    // has placed. A plan then gets no more slots than these leave, even none.
    std::optional<EngineLoad> load;
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
  };
  // A placement of a plan, or the error that prevents it.
  struct Placement {
    core::RequestId id = 0;
    absl::StatusOr<EngineCall> call;
  };

  EngineRank() = default;
  explicit EngineRank(const Options& options);

  void OnEpoch(const EpochOffer& offer, absl::Time now, Output& out);
  void OnPlan(const PlanPart& plan, std::vector<Placement> placements, absl::Time now, Output& out);

  // Events of calls that were cancelled are ignored.
  // The engine found this many tokens of the prompt in its prefix cache, which reduces the rest of the
  // prompt. Comes before the tokens of the message that reports it.
  void OnCached(CallNumber number, int64_t tokens);
  // `message`: of a call that passes.
  void OnTokens(CallNumber number, absl::Span<const uint32_t> tokens, PassedPtr message, absl::Time now,
                Output& out);
  void OnFinished(CallNumber number, EngineEnd end, absl::Time now, Output& out);
  void OnFailed(CallNumber number, const absl::Status& status, absl::Time now, Output& out);

  // The engine reports a step; `step.prompts` has only prompts of this rank.
  void OnStep(const EngineStep& step, absl::Time now, Output& out);
  // Prompt tokens that a step may compute under the plan's level; none: no limit.
  std::optional<int64_t> Allotment() const;

  // How long the engine takes to answer a call.
  void OnRoundTrip(absl::Duration round_trip) { round_trip_ = round_trip; }
  // The engine's report of the rank; empty: the engine sends none, or sent none in time.
  void OnLoad(std::optional<EngineLoad> load, absl::Time now, Output& out);

  // Options::on_trial, until the engine has shown that it works.
  bool on_trial() const { return on_trial_; }
  // The engine's reports of its KV memory have changed while the rank's requests were the same: it decodes.
  bool load_shows_work() const { return load_shows_work_; }

  // Acts when next_deadline() has passed.
  void OnTimer(absl::Time now, Output& out);
  absl::Time next_deadline() const;

  int32_t active() const { return static_cast<int32_t>(calls_.size()); }
  // The numbers of all active calls, ascending.
  std::vector<CallNumber> Calls() const;

 private:
  struct Call {
    core::RequestId id = 0;
    int64_t prompt_tokens = 0;
    int64_t max_new_tokens = 0;
    // Remaining prompt tokens, as estimated; and the first of token_steps_ that computes some of them.
    int64_t prompt_left = 0;
    int64_t first_step = 0;
    // The engine has reported that its prompt is computed: the first token follows.
    bool computed = false;
    // Prompt tokens that the engine found in its cache, where that is not reported yet.
    std::optional<int64_t> cached;
    // Received and reported before the present step.
    int64_t generated = 0;
    // The last of token_reports_ that had tokens of it.
    int64_t token_report = 0;
    // Tokens of the present step.
    std::vector<uint32_t> tokens;
    std::vector<PassedPtr> messages;
    std::optional<FinishReason> finished;
    // Whether it comes whole: its tokens are estimated until it ends. Whether a step has ended since it was
    // sent: the first such step adds no token.
    bool whole = false, seen = false;
    // While all outputs come whole: since when it has generated a token in each usual step.
    absl::Time decodes_since = absl::InfiniteFuture();
    // As the engine reported at the end of the output.
    std::optional<uint32_t> whole_tokens;
    // The present step is complete only after something of this call has come.
    bool awaited = false;
    absl::Time sent_at;
    // Time of its last message, or of the engine's last report of its prompt; token_reports_ then.
    absl::Time heard_at;
    int64_t heard_report = 0;
    // The engine has refused the request; when that is reported to the group.
    std::optional<absl::Status> refused;
    absl::Time refused_until;
    // Refusals before this placement.
    int32_t refusals = 0;
  };

  // The group takes reports.
  bool open() const { return plans_ > 0; }
  // The engine reports its steps (it has done so within kFollows).
  bool Follows(absl::Time now) const { return now - heard_at_ < kFollows; }
  // Called after each change of a call: keeps `awaited`. Every request that has generated tokens in earlier
  // steps generates some in this one.
  void Await(Call& call);
  // At least one request has generated tokens, by the engine's report, and has not ended.
  bool AnyDecodes() const;
  bool AnyWhole() const;
  // The longest prompt that is still to be computed, on the rank and on all ranks of its barrier; 0: none.
  int64_t LongestPrompt() const;
  // Called after changes of calls: updates `own_prompt_` and the barrier's account.
  void TellPrompts();
  // The longest time without a message of the request that does not indicate a fault.
  absl::Duration LongestQuiet(const Call& call) const;
  // The engine seems to have lost it.
  bool Lost(const Call& call, absl::Time now) const;
  // When an engine that brings nothing counts as hung. REQUIRES: it has requests.
  absl::Time QuietEnd() const;
  bool Hangs(absl::Time now) const { return InEngine() > 0 && now >= QuietEnd(); }
  // Number of calls that the engine has not refused.
  int64_t InEngine() const { return std::ssize(calls_) - refused_; }
  // Keeps a request that the engine has refused for a while.
  void Refuse(Call& call, const absl::Status& why, absl::Time now);
  // Reports the refused requests that were kept long enough; false: there are none.
  bool ReleaseRefused(absl::Time now);
  absl::Time NextRefused() const;
  // When the present step ends without further events.
  absl::Time StepDeadline() const;
  // Ends calls, at the request of the router or of the engine. If a call that may take longer delayed
  // QuietEnd for the others, their own time starts now.
  void Drop(absl::Span<const CallNumber> numbers, absl::Time now);
  // Adds to outputs that come whole the tokens that the step has generated for them; `stepped`: other
  // requests had tokens in it, or the engine reported it.
  void Estimate(bool stepped, absl::Time now);
  // Tokens of such an output, by the time of a usual step; 0: unknown.
  int64_t EstimatedTokens(const Call& call, absl::Time now) const;
  // Lets the prompts of such requests be computed in the usual steps until now.
  void ComputeEstimatedPrompts(absl::Time now);
  void EndStep(absl::Time now, Output& out);
  // The tokens that have come belong to the step that was reported last: no request has had tokens in both,
  // and it is too early for the next step.
  bool Late(absl::Time now) const;
  // Adds the duration of a step to the mean.
  void TakeStep(absl::Duration took);
  // Requests of other clients.
  int64_t OthersIn(const EngineLoad& load) const;
  // Learns the time of a step from the number of tokens that the engine has generated between two reports.
  void TakeGenerated(const std::optional<EngineLoad>& load, absl::Time now);
  // Number of requests that may wait inside the engine.
  int32_t Credit() const;
  // KV tokens that the rank holds beyond its memory, by the engine's last report.
  int64_t Shared() const;
  // The batch of a step that ends with tokens; empty where the engine has reported it.
  BatchLoad TakeBatch(bool reported);
  // Ends the step if it is complete.
  void AfterTokens(absl::Time now, Output& out);
  void Forget(CallNumber number);
  void Reject(core::RequestId id, absl::Status status) { rejected_.push_back({id, std::move(status)}); }

  Options options_;
  bool on_trial_ = false;
  // By number, which is the order of arrival.
  std::map<CallNumber, Call> calls_;
  // Number of awaited calls. Kept as a count, because every message of every request reads it.
  int64_t awaited_ = 0;
  // Number of refused calls; the longest prompt of the others that is still to be computed. Kept up to date,
  // because every event of every rank reads them.
  int64_t refused_ = 0, own_prompt_ = 0;
  absl::flat_hash_map<core::RequestId, CallNumber> by_id_;
  CallNumber next_call_ = 1;

  uint64_t epoch_ = 0;
  int64_t step_ = 0;
  // Number of this epoch's plans that have come, and the largest apply_step among them.
  int64_t plans_ = 0;
  int64_t applied_plan_ = 0;
  // A plan has come that no report has acknowledged yet.
  bool owed_ = false;

  // For an engine that reports steps: the time of its last report; its last step, with the decodes of that
  // step; its token budget.
  absl::Time heard_at_ = absl::InfinitePast();
  int64_t heard_step_ = 0;
  int64_t decodes_ = 0, decode_context_ = 0;
  int64_t token_budget_ = 0;
  // Received from the engine, not reported yet: prompt tokens; that a step has ended without tokens.
  int64_t prompt_tokens_ = 0;
  bool stepped_ = false;
  // The level of the last plan with a level, and the step in which that plan came.
  std::optional<double> level_s_;
  int64_t level_step_ = 0;

  // In the present step: requests that ended, failed, or were removed.
  std::vector<RejectedRequest> rejected_;
  std::vector<core::RequestId> preempted_;
  // The last sign that the engine works on its requests, or the time when it got the first of them.
  absl::Time worked_at_ = absl::InfinitePast();
  // The larger of kLongestQuiet and kQuietStepTimeouts.
  absl::Duration longest_quiet_ = kLongestQuiet;
  absl::Time first_token_at_ = absl::InfiniteFuture();
  absl::Time last_report_at_ = absl::InfinitePast(), estimated_at_ = absl::InfinitePast();
  absl::Time last_tokens_at_ = absl::InfinitePast();
  // Mean time between steps with tokens; zero: unknown.
  absl::Duration usual_step_;
  // The last report with a number of generated tokens, while outputs come whole.
  struct Counted {
    int64_t generated = 0, requests = 0;
    absl::Time at;
  };
  std::optional<Counted> counted_;
  // Mean number of requests that end in a step with tokens.
  double ended_per_step_ = 0;
  absl::Duration round_trip_;
  // The smallest value in the present window and the last one.
  class RecentLeast {
   public:
    void BeginWindow() { last_ = std::exchange(present_, std::numeric_limits<int64_t>::max()); }
    int64_t Take(int64_t value) { return std::min(last_, present_ = std::min(present_, value)); }

   private:
    int64_t last_ = 0, present_ = 0;
  };

  // The engine's last report, and the one that was passed on last.
  std::optional<EngineLoad> load_, told_load_;
  // The last report that counted as many requests as the rank had, or the first after a time without any.
  absl::Time load_complete_at_ = absl::InfinitePast();
  bool load_shows_work_ = false;
  // Calls have begun or ended since that report.
  bool calls_changed_ = false;
  // When the present kLoadWindow began; requests of other clients, and KV tokens that the rank holds beyond
  // its memory.
  absl::Time window_since_ = absl::InfinitePast();
  RecentLeast recent_foreign_, recent_shared_;
  int64_t foreign_ = 0, shared_ = 0;
  // Number of reports with tokens so far, without those of late tokens.
  int64_t token_reports_ = 0;
  // Steps with tokens so far; and the version of the batches' cost that was reported last.
  int64_t token_steps_ = 0;
  int64_t told_cost_ = 0;
};

}  // namespace bfio::router

#endif  // BFIO_ROUTER_ENGINE_LINK_ENGINE_RANK_H_
