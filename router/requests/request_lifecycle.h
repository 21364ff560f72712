// What happens to a request from its arrival to its end.
//
// Purpose: the state machine between clients and groups. It accepts or refuses, hands requests to the
// scheduler's pool (core::Cluster), delivers their tokens, ends them, replays those whose worker was lost,
// keeps what resumable streams need, and recovers what workers hold from an earlier router. The parts with
// separate state are classes beside it: request_table.h, resume_store.h, tenants.h, overload.h,
// agent_calls.h.
//
// Ownership: borrows cluster, ids, tenants and overload control. Sinks that need a Flush are collected in
// TakeFlushes. Threads: one, the decision thread's; time is handed in (MonotonicNow).
#ifndef BFIO_ROUTER_REQUESTS_REQUEST_LIFECYCLE_H_
#define BFIO_ROUTER_REQUESTS_REQUEST_LIFECYCLE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/telemetry/line_limiter.h"
#include "router/core/scheduler/cluster.h"
#include "router/requests/agent_calls.h"
#include "router/requests/arrival_rate.h"
#include "router/requests/latency_recorder.h"
#include "router/requests/limits.h"
#include "router/requests/overload.h"
#include "router/requests/request_book.h"
#include "router/requests/request_ids.h"
#include "router/requests/request_table.h"
#include "router/requests/request_totals.h"
#include "router/requests/resume_store.h"
#include "router/requests/tenants.h"

namespace bfio::router {

struct RequestOptions {
  ResumeOptions resume;
  AgentOrder agent_order = AgentOrder::kDue;
  // Bound of a client's priority, so that a request that has begun can go before all that have not.
  int32_t max_abs_priority = 100;
  // Workers begin without reserving all KV that a request may come to hold: admission watches memory.
  bool kv_on_demand = false;
  // After a restart: how long resuming clients wait for the workers that hold their requests; and how
  // much longer when such workers have come and have yet to say what they hold.
  absl::Duration restart_settle = absl::Seconds(5);
  absl::Duration announce_settle = absl::Seconds(25);
  // What a client may leave unread; its sink sees to it.
  StreamLimits stream;
};

// The requests' view of the groups.
struct GroupsView {
  // KV of all groups, and the longest prompt + output that all take; nothing before the first epoch.
  int64_t kv_tokens = 0;
  std::optional<int64_t> max_sequence_tokens;
  // No step has been shorter.
  std::optional<absl::Duration> shortest_step;
  // Every group that is waited for has formed with all its members.
  bool complete = false;
  bool expects_announcements = false;
  // The models that a request which has begun may wait for: digests by number.
  std::map<uint32_t, std::string> models;
};

class RequestLifecycle final : public RequestBook {
 public:
  RequestLifecycle(const RequestOptions& options, core::Cluster* cluster, RequestIds* ids, Tenants* tenants,
                   OverloadControl* overload, absl::Time now);

  // --- clients ---

  // A checked request. Its end comes through `sink`. `ticket` holds its place among its tenant's; a resume
  // brings none.
  void OnArrival(core::RequestId id, ClientRequest request, std::shared_ptr<TokenSink> sink,
                 TenantLimiter::Ticket ticket, absl::Time now);
  // The client of that stream is gone, or its time is up.
  void OnCancel(uint64_t sink_id, bool timed_out, absl::Time now);
  // False when there is no live request that this caller may end. `tenant`: the caller's.
  bool Abort(const std::string& tenant, const std::string& request_id, absl::string_view resume_token,
             absl::Time now);

  // --- groups ---

  void OnTokens(core::RequestId id, absl::Span<const uint32_t> tokens, absl::Time now);
  void OnFinished(core::RequestId id, FinishReason reason, absl::Time now);
  void OnRejected(core::RequestId id, const absl::Status& why, absl::Time now);
  void OnPreempted(core::RequestId id, absl::Time now);
  // Its worker is gone: back into the pool, or its end.
  void OnLost(core::RequestId id, absl::Time now);
  // `rank`: counted over all groups. `model`: the number of the group's; 0: unknown. Nothing when no client
  // waits for the request: it is to be dropped again.
  std::optional<Assignment> OnPlaced(core::RequestId id, uint32_t rank, int64_t wait_steps, absl::Time now,
                                     uint32_t model = 0);
  // Membership, capacity or step times may have changed. Ends what waits for a model that is gone.
  void SetGroups(GroupsView groups);
  // An epoch has opened: requests that fit no worker any more end, and clients that came early are answered.
  void OnEpochOpened(absl::Time now);

  std::vector<core::RequestSpec> Recover(absl::string_view worker_id, std::vector<HeldRequest> held,
                                         absl::Span<const HeldActive> active) override;
  void OnWorkerDied(core::GroupIndex group, core::WorkerIndex worker) override;
  std::optional<uint32_t> ReceivedSincePlaced(core::RequestId id) const override;
  void CountTokens(uint32_t generated, uint32_t received) override;
  // The time of events that reach it through RequestBook.
  void SetTime(absl::Time now) { now_ = now; }

  // --- time ---

  void OnTimer(absl::Time now);
  absl::Time next_deadline() const;

  // New requests are refused from now on, UNAVAILABLE.
  void BeginDrain(absl::Time now);
  // Ends what is left.
  void EndAll(absl::Time now);

  // Sinks whose Flush is to be called, outside of this thread's work.
  std::vector<std::shared_ptr<TokenSink>>& flushes() { return flushes_; }

  // --- views ---

  // Requests that have not ended.
  int64_t live() const { return static_cast<int64_t>(table_.size()) - resumes_.ended(); }
  const RequestTotals& totals() const { return totals_; }
  const LatencyRecorder& latencies() const { return latencies_; }
  // Any thread.
  const ArrivalRate& arrivals() const { return arrivals_; }
  int64_t kept_bytes() const { return resumes_.bytes(); }

 private:
  // --- arrival (arrival.cc) ---

  // True when the call has been dealt with: it resumes its request, waits for the workers, or is
  // refused. False: its request is unknown and starts again.
  bool Resume(core::RequestId id, ClientRequest& request, const std::shared_ptr<TokenSink>& sink);
  // Tokens that the client of a restarted request has count as generated.
  void TakeReceived(RequestRecord& record) const;
  // Whether an unknown request goes ahead of limits and pool because an earlier router had accepted it, which
  // each may do once. So a router crash ends no running request.
  bool MayGoAhead(const ClientRequest& request);
  // Counts refusals.
  absl::Status Admit(RequestRecord& record, bool ahead);
  absl::Status CheckFits(const RequestRecord& record) const;
  void Attach(RequestRecord& record, const std::shared_ptr<TokenSink>& sink, uint32_t from);
  // After a restart: some worker may still come and bring requests that clients already ask for.
  bool Settling() const { return !settled_ && now_ < SettleEnd(); }
  absl::Time SettleEnd() const;
  void AnswerEarlyResumes();
  // What is added to the priority of requests whose clients are in the middle of a stream: no policy sees a
  // request that has not begun before them, however deep the pool is by now.
  int32_t BegunBonus() const { return 2 * options_.max_abs_priority + 1; }
  bool RecoverOne(absl::string_view worker_id, HeldRequest& held, absl::Span<const HeldActive> active,
                  std::vector<core::RequestSpec>& recovered);

  // --- the way to the end (request_lifecycle.cc) ---

  // Ends a request's stream and deletes the request. REQUIRES: the scheduler has removed it.
  void End(RequestRecord& record, const absl::Status& status, std::optional<Finish> finish);
  void Complete(RequestRecord& record, FinishReason reason);
  void Fail(RequestRecord& record, const absl::Status& status);
  // Ends a stream, and sees to it that the call ends though its client may take nothing.
  void EndSink(const std::shared_ptr<TokenSink>& sink, const absl::Status& status,
               std::optional<Finish> finish);
  // From here on the request waits for its client.
  void Detach(RequestRecord& record, const absl::Status& status);
  // The client takes nothing.
  void CutOff(RequestRecord& record);
  // Keeps an ended request for a client that may have missed its end.
  void Retain(RequestRecord& record, const Finish& finish);
  // 0: no request may wait for that model.
  uint32_t NumberOf(const std::string& model) const;
  // Tells its stream the model of its tokens, if there is one and it is known.
  void TellModel(const RequestRecord& record) const;
  // No worker can continue it: the model that it began on is gone.
  bool Stranded(const RequestRecord& record) const;
  // For a client that has `tokens` of it.
  static absl::Status ModelGone(uint32_t tokens);
  // Back into the pool, ahead of all that have not begun.
  void Requeue(const RequestRecord& record);
  // Gives back what an accepted request holds of bounds.
  void Discharge(RequestRecord& record);
  // Charges what is kept of a request, if it is still known; forgets it when that is too much.
  void Keep(core::RequestId id, int64_t bytes);
  void Forget(RequestRecord& record);
  void Cancel(core::RequestId id) { cluster_->Apply(core::Cancel{id}); }
  void FlushLater(const std::shared_ptr<TokenSink>& sink) { flushes_.push_back(sink); }

  const RequestOptions options_;
  core::Cluster* const cluster_;
  RequestIds* const ids_;
  Tenants* const tenants_;
  OverloadControl* const overload_;
  RequestTable table_;
  ResumeStore resumes_;
  AgentCalls agents_;
  RequestTotals totals_;
  LatencyRecorder latencies_;
  ArrivalRate arrivals_;
  GroupsView groups_;
  absl::Time now_;
  const absl::Time started_;
  // All that could bring requests of an earlier router have come.
  bool settled_ = false;
  bool draining_ = false;
  // Tenant and request_id of those that went ahead since the start; empty once none may any more.
  absl::flat_hash_set<std::pair<std::string, std::string>> went_ahead_;
  LineLimiter lines_{10, absl::Seconds(10)};
  std::vector<std::shared_ptr<TokenSink>> flushes_;
};

}  // namespace bfio::router

#endif  // BFIO_ROUTER_REQUESTS_REQUEST_LIFECYCLE_H_
