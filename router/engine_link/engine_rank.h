// One rank of an engine that reports no steps, as a worker of a group.
//
// Purpose: a group works with workers that apply plans and report steps (worker_messages.h). An engine such
// as vLLM has requests and streams of tokens. This state machine translates: plans become calls, and the
// tokens of a step, which arrive together, become a step report. The group's accounts stay exact: the load of
// a request is its prompt and the tokens received, and a request without its first token is reported as a
// prompt that is not computed.
//
// Steps. A step ends when every decoding request has brought tokens, when a request brings tokens for the
// second time, or when kGatherShare of a usual step has passed since its first token. Tokens that come later
// are reported by themselves, and count as of that step in what is learnt of steps. While the rank, or
// another one of its barrier, has a prompt to compute, a step without tokens is reported every kQuietStep, so
// that the group does not cut the rank off during a long prompt: engines that compute prompts first bring no
// tokens of their decodes meanwhile. But only until QuietEnd, because an engine that hangs brings nothing
// either. Where all requests decode, only tokens make steps, and changes of the reported use of KV memory,
// which others' prompts cause. A rank whose decodes stall, or whose prompts take too long, is silent, and the
// group cuts it off after its step timeout.
//
// Prompts. Ranks in a barrier also report how much of their prompts is left. The engine reports nothing
// before a request's first token, so it is estimated: a step computes the prompts in the order in which they
// were sent, as many tokens as its budget leaves beside the decodes. With the first token the engine reports
// how much of the prompt it found in its prefix cache: the step has computed so much less. The estimated
// batches and the steps' times give the batches' cost (barrier_cost.h).
//
// Engines that follow the router (OnStep) report their steps. The reports then replace the estimate: a step
// without tokens ends with its report, one with tokens when all have come that the report announces, and what
// is left of prompts, what batches hold and what they cost is the engine's. Ranks in a barrier are metered
// then: the plan's level becomes an allotment of prompt tokens by the same cost. When the engine has been
// silent for kFollows, steps are inferred again.
//
// Outputs that come whole (Passing). The engine reports nothing of them before their end: each step adds a
// token to them, and the end what is missing. Where no other request has tokens, a step is taken to last as
// long as the steps before. QuietEnd holds for them where the engine shows otherwise that it works: by its
// steps, or by its reported use of KV memory, which must have been seen to change while the rank's requests
// stayed the same (that of state-space models does not). Elsewhere it comes later by the time that such an
// output may take: its max_new_tokens at kSlowerSteps times the usual step, or at kSlowestStep where no step
// has been seen.
//
// Slots. The engine starts the next request when one ends, the router a round trip later. So that no slot
// stays empty, as many requests as end in a round trip and a step, and one more, may wait inside the engine
// (StepReport::extra_slots). Where the engine has requests of other clients, it has less slots for the
// router, and more load. This follows from the engine's reports (OnLoad): others' requests are the fewest
// that any report of the present and the last kLoadWindow has had, because a request of the router that
// has just ended may still be in a report.
//
// Refusals. A request that the engine refuses (RESOURCE_EXHAUSTED, UNAVAILABLE) is placed again, perhaps
// here. It keeps its slot for kShortestRefusal first, twice as long for each worker that has refused it
// before, up to kLongestRefusal, or for as long as the engine says. Without that a full engine would be asked
// again once a round trip, by as many requests as wait.
//
// Lost requests. A request that has begun (it has had tokens, or the engine reports that its prompt is
// computed) may be lost in the engine: then it brings nothing while others of the rank do. It is cancelled
// after kSilentSteps of the others and LongestQuiet, and goes on elsewhere. An engine that takes a request
// out of memory (preemption) may keep it in its queue for longer. Its reports of loads still count that
// request, and not a lost one: the time begins anew with each report of as many requests as the rank has.
// Other clients' requests in these reports hide a lost one. Where the engine reports no loads, the time is
// kQuietWithoutLoads times as long. Requests that are lost before they begin, and outputs that come whole,
// are not found: they end by their clients' deadlines, or with the rank.
//
// Shared memory. Engines keep a prefix that several prompts have once. The requests' tokens then exceed what
// the engine reports to be in use. If the next requests share as much, the rank holds more tokens by the same
// factor (StepReport::shared_kv_tokens). What counts is again the least of two windows, and of the requests
// those that decode: memory of a prompt that is being computed may not be in use yet. If they share less,
// some wait in the engine, or it preempts.
//
// Epochs. The group takes no reports between EpochReady and the epoch's first plan: tokens are kept here.
//
// Ownership: owns its state; borrows the barrier's cost; no I/O. Threads: one. Deterministic: the same events
// at the same times give the same outputs.
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
#include "router/engine_link/barrier_cost.h"
#include "router/engine_link/barrier_prompts.h"
#include "router/engine_link/barrier_watch.h"
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
  // How long such steps are reported after the last sign that the engine works: the largest of these two, and
  // the time of its longest prompt at kSlowestPrefill tokens per second. Not measured: a vLLM that computes
  // prompts more slowly is of little use.
  static constexpr absl::Duration kLongestQuiet = absl::Seconds(60);
  static constexpr int kQuietStepTimeouts = 6;
  static constexpr int64_t kSlowestPrefill = 1000;
  // For outputs that come whole, above. Not measured: steps of a full rank take several times as long as
  // those of an empty one.
  static constexpr int kSlowerSteps = 10;
  static constexpr absl::Duration kSlowestStep = absl::Seconds(1);
  // Of a refused request; the last one bounds what the engine asks for (RetryInfo).
  static constexpr absl::Duration kShortestRefusal = absl::Milliseconds(50);
  static constexpr absl::Duration kLongestRefusal = absl::Seconds(2);
  static constexpr absl::Duration kLongestRetryInfo = absl::Seconds(5);
  static constexpr int64_t kSilentSteps = 64;
  static constexpr int kQuietWithoutLoads = 10;
  // How long a report of the engine holds; it sends some four times a second (BFIO_ROUTER_SILENCE_S).
  static constexpr absl::Duration kFollows = absl::Seconds(2);
  // Longer than most steps, and shorter than the time between two answers of GetLoads. Records of loads come
  // up to once a step.
  static constexpr absl::Duration kLoadWindow = absl::Milliseconds(500);
  // Steps that a plan's level is good for (bfio/v1/worker.proto, Plan.level_s).
  static constexpr int64_t kLevelSteps = 16;

  // A slot that waits for the router's next request is empty for a round trip and a step. Requests wait in
  // the engine for such slots only where these would be more than this share of all: below it, the gain in
  // throughput is less than the loss from choosing the rank earlier.
  static constexpr double kLeastEmptyShare = 0.005;

  struct Options {
    int32_t slots = 1;
    int64_t kv_tokens = 0;
    // For a rank in a barrier: tokens of a step, prompts and decodes; where the batches' cost is fitted, and
    // the rank's number there. Null: it steps independently.
    int64_t token_budget = 0;
    BarrierCost* barrier = nullptr;
    uint64_t number = 0;
    // Compares its steps with the others'; may be null.
    BarrierWatch* watch = nullptr;
    // Those of all its ranks; may be null.
    BarrierPrompts* prompts = nullptr;
    // The engine has been cut off for its silence. Until it brings tokens, or reports work, the rank takes
    // one request, and sends others back (NotTried): they would be lost with it.
    bool on_trial = false;
    // As load_shows_work of another rank, or connection, of the engine.
    bool load_shows_work = false;
  };

  struct StartCall {
    CallNumber number = 0;
    EngineCall call;
  };
  // In the order in which they have to be carried out.
  struct Output {
    std::vector<EpochReady> ready;
    std::vector<StepReport> reports;
    std::vector<StartCall> start;
    std::vector<CallNumber> cancel;
  };
  // A placement of a plan, or the error why it cannot be executed.
  struct Placement {
    core::RequestId id = 0;
    absl::StatusOr<EngineCall> call;
  };

  EngineRank() = default;
  explicit EngineRank(const Options& options)
      : options_(options), on_trial_(options.on_trial), load_shows_work_(options.load_shows_work) {}

  void OnEpoch(const EpochOffer& offer, absl::Time now, Output& out);
  void OnPlan(const PlanPart& plan, std::vector<Placement> placements, absl::Time now, Output& out);

  // Events of calls that were cancelled are ignored.
  // The engine had so many tokens of the prompt in its prefix cache; comes before the tokens of the message
  // that reports it. What is left of the prompt is less by them.
  void OnCached(CallNumber number, int64_t tokens);
  // `message`: of a call that passes.
  void OnTokens(CallNumber number, absl::Span<const uint32_t> tokens, PassedPtr message, absl::Time now,
                Output& out);
  void OnFinished(CallNumber number, EngineEnd end, absl::Time now, Output& out);
  void OnFailed(CallNumber number, const absl::Status& status, absl::Time now, Output& out);

  // The engine reports a step, whose prompts are this rank's.
  void OnStep(const EngineStep& step, absl::Time now, Output& out);
  // Prompt tokens of a step under the plan's level; none: no limit.
  std::optional<int64_t> Allotment() const;

  // How long the engine takes to answer.
  void OnRoundTrip(absl::Duration round_trip) { round_trip_ = round_trip; }
  // The engine's report of the rank; empty: none, or none in time.
  void OnLoad(std::optional<EngineLoad> load, absl::Time now, Output& out);

  // Options::on_trial, until the engine has shown that it works.
  bool on_trial() const { return on_trial_; }
  // The engine's reports of its KV memory have changed while the rank's requests were the same: it decodes.
  bool load_shows_work() const { return load_shows_work_; }

  // Acts when next_deadline() has passed.
  void OnTimer(absl::Time now, Output& out);
  absl::Time next_deadline() const;

  int32_t active() const { return static_cast<int32_t>(calls_.size()); }
  // All that are active, ascending.
  std::vector<CallNumber> Calls() const;

 private:
  struct Call {
    core::RequestId id = 0;
    int64_t prompt_tokens = 0;
    int64_t max_new_tokens = 0;
    // Remaining prompt tokens, by the estimate; and the first of token_steps_ that computes some of them.
    int64_t prompt_left = 0;
    int64_t first_step = 0;
    // The engine has reported that its prompt is computed: the first token follows.
    bool computed = false;
    // Prompt tokens that the engine found in its cache, where that is not reported yet.
    std::optional<int64_t> cached;
    // Received and reported before the present step.
    int64_t generated = 0;
    // The last of token_reports_ that it had tokens in.
    int64_t token_report = 0;
    // Tokens of the present step.
    std::vector<uint32_t> tokens;
    std::vector<PassedPtr> messages;
    std::optional<FinishReason> finished;
    // Its tokens are estimated until it ends; from `sent_at` on, and not in the first step that ends after
    // it.
    bool whole = false, seen = false;
    // As the engine reported at its end.
    std::optional<uint32_t> whole_tokens;
    // The present step is not complete without something of it.
    bool awaited = false;
    absl::Time sent_at;
    // Of its last message, or the engine's last report of its prompt; and the last of token_reports_ then.
    absl::Time heard_at;
    int64_t heard_report = 0;
    // The engine has refused it, and it is reported at that time.
    std::optional<absl::Status> refused;
    absl::Time refused_until;
    // Before this placement.
    int32_t refusals = 0;
  };

  // The group takes reports.
  bool open() const { return plans_ > 0; }
  // The engine reports its steps.
  bool Follows(absl::Time now) const { return now - heard_at_ < kFollows; }
  // Called after each change of a call: keeps `awaited`. Every request that has generated tokens in earlier
  // steps generates some in this one.
  void Await(Call& call);
  // Some request has generated tokens, by the engine's report, and has not ended.
  bool AnyDecodes() const;
  bool AnyWhole() const;
  // The longest prompt that is still to be computed, of the rank and of all in its barrier; 0: none.
  int64_t LongestPrompt() const;
  // Called after changes of calls: keeps `own_prompt_`, and the barrier's account.
  void TellPrompts();
  // The longest time without a message of it that is no sign of a fault.
  absl::Duration LongestQuiet(const Call& call) const;
  // The engine seems to have lost it.
  bool Lost(const Call& call, absl::Time now) const;
  // When an engine that brings nothing counts as hung. REQUIRES: it has requests.
  absl::Time QuietEnd() const;
  bool Hangs(absl::Time now) const { return InEngine() > 0 && now >= QuietEnd(); }
  // Requests that it has not refused.
  int64_t InEngine() const { return std::ssize(calls_) - refused_; }
  // Keeps a request that the engine has refused for a while.
  void Refuse(Call& call, const absl::Status& why, absl::Time now);
  // Reports those that were kept long enough; false: none.
  bool ReleaseRefused(absl::Time now);
  absl::Time NextRefused() const;
  // When the present step ends by itself.
  absl::Time StepDeadline() const;
  // Ends calls at the router's wish, or the engine's. Requests that have waited for one that may take longer
  // than they get their own time from now on.
  void Drop(absl::Span<const CallNumber> numbers, absl::Time now);
  // Adds the tokens that the step has brought to outputs that come whole; `stepped`: others had some, or the
  // engine reports it.
  void Estimate(bool stepped, absl::Time now);
  void EndStep(absl::Time now, Output& out);
  // The tokens at hand are the rest of the step that was reported last: no request has had some in both, and
  // it is too early for the next step.
  bool Late(absl::Time now) const;
  // What a step took, for the mean of them.
  void TakeStep(absl::Duration took);
  // Requests that may wait inside the engine.
  int32_t Credit() const;
  // KV tokens that it holds beyond its memory, by the engine's present report.
  int64_t Shared() const;
  // What a step that ends with tokens has computed; nothing where the engine has reported it.
  BatchLoad TakeBatch(bool reported);
  // Ends the step if it is complete.
  void AfterTokens(absl::Time now, Output& out);
  void Forget(CallNumber number);
  void Reject(core::RequestId id, absl::Status status) { rejected_.push_back({id, std::move(status)}); }

  Options options_;
  bool on_trial_ = false;
  // By number, which is the order of arrival.
  std::map<CallNumber, Call> calls_;
  // Those that are awaited. Counted, because every message of every request asks.
  int64_t awaited_ = 0;
  // Those that it has refused; the longest prompt of the others that is to be computed. Kept, because every
  // event of every rank asks.
  int64_t refused_ = 0, own_prompt_ = 0;
  absl::flat_hash_map<core::RequestId, CallNumber> by_id_;
  CallNumber next_call_ = 1;

  uint64_t epoch_ = 0;
  int64_t step_ = 0;
  // Plans of this epoch that have come, and the largest number of one.
  int64_t plans_ = 0;
  int64_t applied_plan_ = 0;
  // A plan has come that no report has acknowledged.
  bool owed_ = false;

  // For an engine that reports steps: the time of its last report; its last step, with the decodes of that;
  // its budget.
  absl::Time heard_at_ = absl::InfinitePast();
  int64_t heard_step_ = 0;
  int64_t decodes_ = 0, decode_context_ = 0;
  int64_t token_budget_ = 0;
  // Received from it and not in a report yet: prompt tokens, and that a step has ended without tokens.
  int64_t prompt_tokens_ = 0;
  bool stepped_ = false;
  // The level of the last plan with a level, and the step in which that plan came.
  std::optional<double> level_s_;
  int64_t level_step_ = 0;

  // In the present step: requests that ended, failed, or were removed.
  std::vector<RejectedRequest> rejected_;
  std::vector<core::RequestId> preempted_;
  // The last sign that the engine works on its requests, or when it got the first of them.
  absl::Time worked_at_ = absl::InfinitePast();
  // The larger of kLongestQuiet and kQuietStepTimeouts.
  absl::Duration longest_quiet_ = kLongestQuiet;
  absl::Time first_token_at_ = absl::InfiniteFuture();
  absl::Time last_report_at_ = absl::InfinitePast();
  absl::Time last_tokens_at_ = absl::InfinitePast();
  // Mean time between steps with tokens; zero: not known.
  absl::Duration usual_step_;
  // Requests that end in a step with tokens, on average.
  double ended_per_step_ = 0;
  absl::Duration round_trip_;
  // The least value of the present window and the last one.
  class RecentLeast {
   public:
    void BeginWindow() { last_ = std::exchange(present_, std::numeric_limits<int64_t>::max()); }
    int64_t Take(int64_t value) { return std::min(last_, present_ = std::min(present_, value)); }

   private:
    int64_t last_ = 0, present_ = 0;
  };

  // As the engine reported last.
  std::optional<EngineLoad> load_;
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
  // Reports with tokens so far, but for those of late ones.
  int64_t token_reports_ = 0;
  // Steps with tokens so far; and the version of the batches' cost that was reported last.
  int64_t token_steps_ = 0;
  int64_t told_cost_ = 0;
};

}  // namespace bfio::router

#endif  // BFIO_ROUTER_ENGINE_LINK_ENGINE_RANK_H_
