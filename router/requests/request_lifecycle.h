// A request's path from its arrival to its end. The state machine between clients and groups. It accepts or
// refuses requests, puts them into the scheduler's pool (core::Cluster), delivers their tokens, ends them,
// replays those whose worker was lost, keeps the state of resumable streams, and recovers requests that
// workers hold from an earlier router. Parts with separate state are classes beside it: request_table.h,
// resume_store.h, tenants.h, overload.h. Ownership: borrows cluster, tenants and overload
// control. flushes() collects the sinks that need a Flush. Threads: one, the decision thread's; time is
// passed in (MonotonicNow).
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/telemetry/line_limiter.h"
#include "router/core/model/request.h"
#include "router/core/scheduler/cluster.h"
#include "router/requests/latency_recorder.h"
#include "router/requests/limits.h"
#include "router/requests/overload.h"
#include "router/requests/request_book.h"
#include "router/requests/request_table.h"
#include "router/requests/request_totals.h"
#include "router/requests/resume_store.h"
#include "router/requests/tenants.h"

namespace bfio::router {

// Request ids that are unique while the router runs. Threads: any.
class RequestIds {
 public:
  explicit RequestIds(core::RequestId first) : next_(first) {}

  // A first id above all ids of routers that started before this moment: engines may still run their
  // requests, whose names contain the ids.
  static core::RequestId FirstAt(absl::Time wall_clock) {
    return static_cast<core::RequestId>(absl::ToUnixMillis(wall_clock)) << 20;
  }

  core::RequestId Next() { return next_.fetch_add(1, std::memory_order_relaxed); }

 private:
  std::atomic<core::RequestId> next_;
};

struct RequestOptions {
  ResumeOptions resume;
  // Bound of a client's priority; it lets the router rank started requests above all others.
  int32_t max_abs_priority = 100;
  // Workers may start a request without reserving all KV tokens that it may need: admission watches memory.
  bool kv_on_demand = false;
  // After a restart: how long resuming clients wait for the workers that hold their requests, and how much
  // longer while workers have connected and not announced their requests yet.
  absl::Duration restart_settle = absl::Seconds(5);
  absl::Duration announce_settle = absl::Seconds(25);
  // Prompts are handed over also where the rank that decodes would compute them sooner.
  bool hands_over_all = false;
  // How long a request may wait for its first placement; 0: no bound.
  absl::Duration max_queue_time = absl::Minutes(1);
  // Limits of unread tokens; the sink enforces them.
  StreamLimits stream;
};

// An output of a call as it arrives. `ticket` holds its share of its tenant's limits; a resume has none.
struct Arrival {
  core::RequestId id = 0;
  ClientRequest request;
  std::shared_ptr<TokenSink> sink;
  TenantLimiter::Ticket ticket;
};

// The ranks of a group, as clients name them.
struct GroupRanks {
  core::GroupIndex group = 0;
  // 0 while the group does not serve.
  int32_t ranks = 0;
  // The group does not serve but is expected to serve again; its number of ranks is then unknown.
  bool returns = false;
  // They compute prompts for other groups.
  bool hands_over = false;
  friend bool operator==(const GroupRanks&, const GroupRanks&) = default;
};

// The properties of the groups that requests depend on.
struct GroupsView {
  // Of the groups that have served and are expected to serve again; empty before the first epoch.
  std::vector<GroupCapacity> capacities;
  // Lower bound of the duration of a step.
  std::optional<absl::Duration> shortest_step;
  // Every group that the router waits for has formed with all its members.
  bool complete = false;
  bool expects_announcements = false;
  // In the order in which ranks are counted.
  std::vector<GroupRanks> ranks;
  // Ranks serve that compute prompts for others; the engines' own names, where they report them.
  bool hands_over = false;
  absl::flat_hash_set<std::string> prefill_engines;
  // Both calls of a request begin together; ranks that decode compute no prompts (SGLang).
  bool in_parallel = false, computes_none = false;
  // Models that started requests may wait for: digests by number.
  std::map<uint32_t, std::string> models;
};

class RequestLifecycle final : public RequestBook {
 public:
  RequestLifecycle(const RequestOptions& options, core::Cluster* cluster, Tenants* tenants,
                   OverloadControl* overload, absl::Time now);

  // --- clients ---

  // Accepts or refuses a checked request; its end comes through its sink.
  void OnArrival(Arrival arrival, absl::Time now);
  // The same for a call of several outputs, in their order: accepts all or none. REQUIRES: none is resumable
  // or a resume.
  void OnCall(std::vector<Arrival> outputs, absl::Time now);
  // Cancels the request of a stream whose client has disconnected or whose deadline has passed.
  void OnCancel(uint64_t sink_id, bool timed_out, absl::Time now);
  // Ends a live request, or all live outputs of a call. False when there is none that this caller may end.
  // `tenant`: the caller's.
  bool Abort(const std::string& tenant, const std::string& request_id, absl::string_view resume_token,
             absl::Time now);

  // --- groups ---

  // `messages`: those of the engine, for a request that passes.
  void OnTokens(core::RequestId id, absl::Span<const uint32_t> tokens, const LogprobsView& logprobs,
                absl::Time now, absl::Span<const PassedPtr> messages = {});
  // `generated`: how many tokens it has generated, where nobody here has seen them.
  void OnFinished(core::RequestId id, FinishReason reason, absl::Time now,
                  std::optional<uint32_t> generated = std::nullopt);
  void OnRejected(core::RequestId id, const absl::Status& why, absl::Time now);
  // `hand_off`: its prompt has been computed for another rank.
  void OnPreempted(core::RequestId id, absl::Time now, HandOffPtr hand_off = nullptr);
  // The request's worker is gone: the request goes back into the pool, or ends.
  void OnLost(core::RequestId id, absl::Time now);
  // `rank`: counted over all groups. `model`: number of the group's model; 0: unknown. Empty when no client
  // waits for the request, which must then be dropped again.
  std::optional<Assignment> OnPlaced(core::RequestId id, uint32_t rank, int64_t wait_steps, absl::Time now,
                                     uint32_t model = 0);
  // Call when membership, capacity or step times may have changed. Ends requests whose model is gone.
  void SetGroups(GroupsView groups);
  // Of the groups, or of the last that decoded while none does.
  bool computes_none() const { return groups_.computes_none; }
  // An epoch has opened: ends requests that no longer fit any worker, and answers early resumes.
  void OnEpochOpened(absl::Time now);

  std::vector<core::RequestSpec> Recover(const Holder& holder, std::vector<HeldRequest> held) override;
  void OnWorkerDied(core::GroupIndex group, core::WorkerIndex worker) override;
  std::optional<uint32_t> ReceivedSincePlaced(core::RequestId id) const override;
  void CountTokens(uint32_t generated, uint32_t received) override;
  // Sets the time of the events that arrive through RequestBook.
  void SetTime(absl::Time now) { now_ = now; }

  // --- time ---

  void OnTimer(absl::Time now);
  absl::Time next_deadline() const;

  // Refuses new requests from now on, with UNAVAILABLE.
  void BeginDrain(absl::Time now);
  // Ends all remaining requests.
  void EndAll(absl::Time now);

  // Sinks whose Flush is due; the caller calls it outside this thread's work.
  std::vector<std::shared_ptr<TokenSink>>& flushes() { return flushes_; }

  // --- views ---

  // Requests that have not ended.
  int64_t live() const { return static_cast<int64_t>(table_.size()) - resumes_.ended(); }
  const RequestTotals& totals() const { return totals_; }
  const LatencyRecorder& latencies() const { return latencies_; }
  // A prompt was placed since the last call, so its request waits for a rank that decodes.
  bool TakePromptsPlaced() { return std::exchange(prompts_placed_, false); }
  // Hand-offs that wait for a rank, and how long the first has; for an occasional view.
  std::pair<int64_t, absl::Duration> HandOffsWaiting() const;
  // Any thread.
  int64_t kept_bytes() const { return resumes_.bytes(); }

 private:
  // --- arrival (arrival.cc) ---

  // True when the call is handled: it resumes its request, waits for the workers, or is refused. False: its
  // request is unknown and starts again.
  bool Resume(core::RequestId id, ClientRequest& request, const std::shared_ptr<TokenSink>& sink);
  // Counts the tokens that the client of a restarted request has as delivered.
  void TakeReceived(RequestRecord& record) const;
  // Whether an unknown request skips limits and pool bounds because an earlier router had accepted it;
  // allowed once per request, so that a router crash ends no running request.
  bool MayGoAhead(const ClientRequest& request);
  // Puts the request into the table; counts refusals. `arrival` keeps its sink.
  absl::StatusOr<RequestRecord*> AddToTable(Arrival& arrival);
  // Checks all bounds and enqueues the request; counts refusals. `own_kv`: as for OverloadControl::Check.
  absl::Status Admit(RequestRecord& record, bool ahead, int64_t own_kv = 0);
  // Admits the outputs of a call and charges overload control with them; with an error, those before the
  // failed one are in `admitted`.
  absl::Status AdmitOutputs(std::vector<Arrival>& outputs, std::vector<RequestRecord*>& admitted);
  // Counts an admitted request as accepted.
  void CountAccepted(const RequestRecord& record);
  // INVALID_ARGUMENT: no group of the request's model can run it.
  absl::Status CheckFits(const RequestRecord& record) const;
  // Sets record.held_to for a request whose client has named a rank. INVALID_ARGUMENT: there is none of that
  // number; UNAVAILABLE: no rank serves, or which rank has that number depends on a group that forms.
  absl::Status FindRank(RequestRecord& record);
  // Where the client has set no limit, limits the output to what its rank can hold. REQUIRES: record.held_to.
  void FitToRank(RequestRecord& record) const;
  // Longest prompt + output that the rank's KV memory can hold; empty: not known yet. REQUIRES:
  // record.held_to.
  std::optional<int64_t> LongestOnItsRank(const RequestRecord& record) const;
  void Attach(RequestRecord& record, const std::shared_ptr<TokenSink>& sink, uint32_t from);
  // After a restart: true while workers may still connect with requests that clients already resume.
  bool Settling() const { return !settled_ && now_ < SettleEnd(); }
  absl::Time SettleEnd() const;
  void AnswerEarlyResumes();
  // Added to the priority of requests whose clients have started to receive tokens, so that every policy
  // places them before requests that have not started, however deep the pool is.
  int32_t BegunBonus() const { return 2 * options_.max_abs_priority + 1; }
  // The number of tokens that each request has generated on its holder, by id.
  using Generated = absl::flat_hash_map<core::RequestId, uint32_t>;
  // `kv_left`: KV tokens for which the holder's requests may still be charged.
  bool RecoverOne(HeldRequest& held, const Generated& active, int64_t& kv_left,
                  std::vector<core::RequestSpec>& recovered);

  // --- ending (request_lifecycle.cc) ---

  // Ends a request's stream and deletes the request. REQUIRES: the scheduler has removed it.
  void End(RequestRecord& record, const absl::Status& status, std::optional<Finish> finish);
  void Complete(RequestRecord& record, FinishReason reason);
  // Ends a request for which no worker was found in time.
  void EndQueued(RequestRecord& record);
  void Fail(RequestRecord& record, const absl::Status& status);
  // Ends a stream, and makes sure that the call ends even if its client reads nothing.
  void EndSink(const std::shared_ptr<TokenSink>& sink, const absl::Status& status,
               std::optional<Finish> finish);
  // Ends the request's stream; from then on the request waits for its client.
  void Detach(RequestRecord& record, const absl::Status& status);
  // Ends the stream of a client that does not read.
  void CutOff(RequestRecord& record);
  // Keeps an ended request for a client that may have missed its end.
  void Retain(RequestRecord& record, const Finish& finish);
  // The model's number; 0: no request may wait for that model.
  uint32_t NumberOf(const std::string& model) const;
  // Sends the model of the request's tokens to its stream, if it is known.
  void SetModelOf(const RequestRecord& record) const;
  // True when no worker can continue the request because its model is gone.
  bool Stranded(const RequestRecord& record) const;
  // True when the rank that the client has named no longer exists.
  bool RankGone(const RequestRecord& record) const;
  void EndIfRankGone(RequestRecord& record);
  // The status for a client that has `tokens` of the request's tokens.
  static absl::Status ModelGone(uint32_t tokens);
  // True when it has ended, because no other engine can continue its delivered output.
  bool EndIfStuck(RequestRecord& record);
  // Puts the request back into the pool, before all requests that have not started. A hand-off that it had is
  // void.
  void Requeue(RequestRecord& record);
  void EnterAgain(RequestRecord& record);
  // Whether another rank than the one that decodes may compute its prompt; sets whether it does.
  bool MayHandOver(const RequestRecord& record) const;
  void ChooseHandOver(RequestRecord& record);
  // INVALID_ARGUMENT: the client's hand-off is not one that may be used.
  absl::Status CheckHandOff(const RequestRecord& record) const;
  // Its prompt has been computed for another rank.
  void TakeHandOff(RequestRecord& record, HandOffPtr hand_off);
  // The request waits, and cannot get what it waits for.
  void WaitAnew(RequestRecord& record);
  // Other ranks compute prompts: requests that wait for a rank may wait for another one.
  void ChooseHandOversAnew();
  // By RequestRecord::core_id and ::prompt; null: none that lives has it.
  RequestRecord* InCore(core::RequestId id) const;
  RequestRecord* OfPrompt(core::RequestId id) const;
  std::optional<core::Cluster::Location> LocationOf(const RequestRecord& record) const {
    return cluster_->LocationOf(record.core_id);
  }
  // Its prompt is placed: from now on it waits for a rank that decodes. False: it has ended.
  bool BeginPrompt(RequestRecord& record, Assignment& assignment);
  void DropPrompt(RequestRecord& record);
  // Its prompt has failed. False: it needs it no more, or cannot be placed again.
  bool WithdrawFrom(RequestRecord& record);
  // Releases what an accepted request holds of the bounds.
  void Discharge(RequestRecord& record);
  // Charges bytes kept of a request, if it still exists; forgets the request when that exceeds a bound.
  void Keep(core::RequestId id, int64_t bytes);
  void Forget(RequestRecord& record);
  void Cancel(core::RequestId id) { cluster_->Apply(core::Cancel{id}); }
  void FlushLater(const std::shared_ptr<TokenSink>& sink) { flushes_.push_back(sink); }

  const RequestOptions options_;
  core::Cluster* const cluster_;
  Tenants* const tenants_;
  OverloadControl* const overload_;
  RequestTable table_;
  ResumeStore resumes_;
  AgentCalls agents_;
  QueueDeadlines queue_;
  RequestTotals totals_;
  LatencyRecorder latencies_;
  GroupsView groups_;
  UsedHandOffs used_hand_offs_;
  // Requests by the core's ids that are not their own: those of prompts, and of requests that were withdrawn
  // from a rank. Ids of requests are below the first.
  absl::flat_hash_map<core::RequestId, core::RequestId> aliases_;
  core::RequestId next_alias_ = core::RequestId{1} << 62;
  bool prompts_placed_ = false;
  absl::Time now_;
  const absl::Time started_;
  // All workers that could hold requests of an earlier router have connected.
  bool settled_ = false;
  bool draining_ = false;
  // At least one client has named a rank.
  bool ranks_named_ = false;
  // Tenant and request_id of the requests that MayGoAhead has admitted; emptied when it admits no more.
  absl::flat_hash_map<std::string, absl::flat_hash_set<std::string>> went_ahead_;
  int64_t went_ahead_count_ = 0;
  LineLimiter lines_{10, absl::Seconds(10)};
  std::vector<std::shared_ptr<TokenSink>> flushes_;
};

}  // namespace bfio::router
