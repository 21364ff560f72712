// The router's one decision thread.
//
// Purpose: it alone owns scheduling state (core::Scheduler), membership (Group) and the requests
// (RequestTable); gRPC's threads post events to it, it sends plans to worker sessions and hands tokens to
// client streams. No locks on any of that state. Threads: the constructor starts the thread, Stop ends it.
// Methods of the first section may be called from any thread; all others run on the decision thread only
// (from closures given to Post).
#ifndef BFIO_ROUTER_APP_DECISION_LOOP_H_
#define BFIO_ROUTER_APP_DECISION_LOOP_H_

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "bfio/v1/admin.pb.h"
#include "bfio/v1/inference.pb.h"
#include "bfio/v1/worker.pb.h"
#include "router/app/decide_budget.h"
#include "router/app/event_queue.h"
#include "router/app/options.h"
#include "router/core/agents/parents.h"
#include "router/core/scheduler/scheduler.h"
#include "router/frontend/client_stream.h"
#include "router/frontend/stream_sender.h"
#include "router/group/group.h"
#include "router/group/step_recorder.h"
#include "router/record/log_sink.h"
#include "router/record/recorded_scheduler.h"
#include "router/requests/arrival_rate.h"
#include "router/requests/latency_recorder.h"
#include "router/requests/replay_budget.h"
#include "router/requests/request_table.h"
#include "router/requests/tenant_totals.h"
#include "router/worker_link/convert.h"
#include "router/worker_link/worker_session.h"

namespace bfio::router {

// The decision thread turns to what waits this often, whatever waits.
inline constexpr absl::Duration kLongestTurn = absl::Seconds(5);

class DecisionLoop final : private Group::Listener {
 public:
  struct Hooks {
    // An epoch has opened (true) or closed (false): for health checks. Called on the decision thread.
    std::function<void(bool)> on_serving;
    StepRecorder::Sink on_step;
  };

  // Starts `decide_budget`, if there is one, with every decision; whether it ends one is for the policy to
  // ask (PolicyOptions::stop). Every decision and what it came from go into `decision_log`, if there is one.
  DecisionLoop(const RouterOptions& options, std::unique_ptr<core::Policy> policy,
               std::unique_ptr<core::Lookahead> lookahead, Hooks hooks,
               std::shared_ptr<DecideBudget> decide_budget = nullptr,
               std::unique_ptr<record::LogSink> decision_log = nullptr);
  ~DecisionLoop() override;

  // --- any thread ---

  // Runs `event` on the decision thread. False after Stop.
  bool Post(absl::AnyInvocable<void(DecisionLoop&) &&> event);
  // The same for calls, which others cause at will: RESOURCE_EXHAUSTED when too much waits (for clients'
  // calls before it is too much for new requests, for operators' later), UNAVAILABLE after Stop.
  enum class Caller { kClient, kOperator };
  absl::Status PostCall(Caller caller, absl::AnyInvocable<void(DecisionLoop&) &&> event);

  // Hands over a checked request. RESOURCE_EXHAUSTED when too many wait to be looked at, UNAVAILABLE after
  // Stop.
  absl::Status PostArrival(core::RequestId id, v1::GenerateRequest request,
                           std::shared_ptr<ClientStream> stream);
  // Charges the request to its tenant's limits; RESOURCE_EXHAUSTED.
  absl::StatusOr<TenantLimiter::Ticket> EnterTenant(const v1::GenerateRequest& request);
  // The client of that stream is gone, or its time is up.
  void PostCancel(uint64_t stream_id, bool timed_out);

  void PostWorkerMessage(std::shared_ptr<WorkerSession> session, v1::WorkerMessage message);
  void PostWorkerGone(std::shared_ptr<WorkerSession> session);

  // Since the decision thread last turned to what waits. It does so every kLongestTurn at least, so much more
  // says that it is stuck.
  absl::Duration SinceTurn() const;

  const ArrivalRate& arrivals() const { return arrivals_; }
  const StreamLimits& stream_limits() const { return options_.stream; }

  core::RequestId NextId() { return next_id_.fetch_add(1, std::memory_order_relaxed); }

  // Refuses new requests, lets the accepted ones run for at most options.drain_timeout, ends the rest with
  // UNAVAILABLE, closes the workers' streams and stops the thread. Blocks until then.
  void Stop();

  // --- decision thread ---

  // False when there is no live request that this caller may end.
  bool Abort(const v1::AbortRequest& abort, const std::optional<std::string>& tenant);
  absl::Status DrainWorker(const std::string& worker_id);
  absl::Status SetPolicy(const v1::PolicySetting& setting);
  void FillState(v1::ClusterState& state);
  // NOT_FOUND when `request` names a rank that does not exist.
  absl::Status FillLoads(const v1::GetLoadsRequest& request, v1::GetLoadsResponse& response);

 private:
  // Events that may wait when a new request comes.
  int64_t ArrivalsLimit() const { return 2 * options_.max_waiting + 1024; }
  // Any thread. RESOURCE_EXHAUSTED when `limit` events wait, UNAVAILABLE after Stop.
  absl::Status PostWithin(int64_t limit, EventQueue::Event event);

  void Run();
  bool DrainDone(absl::Time now);
  void RunTimers(absl::Time now);
  absl::Duration UntilNextDeadline(absl::Time now);

  void OnArrival(core::RequestId id, v1::GenerateRequest request, std::shared_ptr<ClientStream> stream,
                 TenantLimiter::Ticket ticket);
  void OnCancel(uint64_t stream_id, bool timed_out);
  void OnWorkerMessage(const std::shared_ptr<WorkerSession>& session, const v1::WorkerMessage& message);
  void OnStepReport(Member& member, const v1::StepReport& report);
  void DeliverTokens(core::WorkerIndex rank, const v1::StepReport& report);
  void Deliver(RequestRecord& record, absl::Span<const uint32_t> tokens);
  void FinishRequests(core::WorkerIndex rank, const v1::StepReport& report);
  void OnRejections(core::WorkerIndex rank, const v1::StepReport& report);
  // Puts what the worker had no KV for back at the front of the pool.
  void OnPreempted(core::WorkerIndex rank, const v1::StepReport& report);
  // What the worker says its steps cost and draw.
  void TakeFigures(Member& member, const v1::StepReport& report);
  // Tells the scheduler what the workers of the present epoch cost, where that changes anything.
  void UpdateTimes();
  // What a mean request takes on each of them; true where that has changed. `serving`: the scheduler has
  // these ranks, and their loads.
  bool SetServiceTimes(const std::vector<Member*>& ranks, bool serving);
  void OnLeave(Member& member);
  void ReleaseDrained();
  // Breaks off the streams of workers that do not read.
  void CheckSessions(absl::Time now);
  bool MayLeave(const Member& member);

  void OnEpochOpen(uint64_t epoch, const std::vector<Member*>& ranks) override;
  void OnEpochClosed() override;
  // Its worker is lost: back into the pool with it, or its end.
  void Replay(RequestRecord& record);
  // Requests that no present worker could ever hold are ended rather than left to wait for ever.
  void RefuseUnfit();
  absl::Status CheckFits(const RequestRecord& record) const;
  // Whether what has been accepted leaves room for one more to wait. RESOURCE_EXHAUSTED.
  absl::Status CheckRoom(const RequestRecord& record) const;
  // Counts an accepted request for CheckRoom; and no longer.
  void Commit(RequestRecord& record);
  void Uncommit(RequestRecord& record);
  // A call of an agent: what its parent gives it, DEADLINE_EXCEEDED where the parent comes too late; tells
  // the parent that it has been let in; that it has ended.
  absl::Status LookAtParent(RequestRecord& record);
  absl::Status CheckDeadline(const RequestRecord& record) const;
  void JoinParent(const RequestRecord& record);
  void LeaveParent(RequestRecord& record);
  // Ends the calls of parents whose deadline has passed.
  void ExpireParents(absl::Time now);
  absl::Duration UntilParentDeadline(absl::Time now) const;

  // No worker has a free slot.
  bool Saturated() const;
  void Decide(bool force);
  void SendPlan(const core::Plan& plan);

  // Ends a request's stream and forgets the request. The core must not know it any more.
  void End(RequestRecord& record, grpc::Status status, std::optional<v1::Finish> finish);
  void Complete(RequestRecord& record, v1::FinishReason reason);
  void Fail(RequestRecord& record, const absl::Status& status);
  // Ends a stream, and sees to it that the call ends though its client may take nothing.
  void EndStream(const std::shared_ptr<ClientStream>& stream, grpc::Status status,
                 std::optional<v1::Finish> finish);
  // Requests that have not ended.
  size_t live() const { return requests_.size() - ended_count_; }

  // --- streams that break and go on (resume.cc) ---

  // True when the call has been dealt with: it goes on with its request, waits for the workers, or is
  // refused. False: its request is unknown and starts anew.
  bool Resume(core::RequestId id, v1::GenerateRequest& request, const std::shared_ptr<ClientStream>& stream);
  // What the client of a request that starts anew has of it already counts as made.
  void TakeReceived(RequestRecord& record);
  // What is added to the priority of requests whose clients are in the middle of a stream: no policy sees who
  // has not begun before them, however deep the pool is by now.
  int32_t BegunBonus() const { return 2 * options_.limits.max_abs_priority + 1; }
  void Attach(RequestRecord& record, const std::shared_ptr<ClientStream>& stream, uint32_t from);
  // From here on the request waits for its client.
  void Detach(RequestRecord& record, grpc::Status status);
  // The client takes nothing.
  void CutOff(RequestRecord& record);
  // Keeps an ended request for a client that may have missed its end.
  void Retain(RequestRecord& record, const v1::Finish& finish);
  void ExpireResumes(absl::Time now);
  // After a restart: some worker may still come and bring requests that clients already ask for.
  bool Settling() const { return !settled_ && now_ < SettleEnd(); }
  absl::Time SettleEnd() const;
  void AnswerEarlyResumes();
  // Charges what is kept of a request, if it is still known; forgets it when that is too much.
  void Keep(core::RequestId id, int64_t bytes);
  void Forget(RequestRecord& record);
  bool EvictEnded();

  // --- requests of an earlier router (adoption.cc) ---

  void Adopt(const Member& member, core::EpochMember& out);
  // What a member brings of another router's, and was not adopted, is not taken for anything of this one's.
  void SetStrangersApart(const Member& member, core::EpochMember& out);
  // Compares what the members say they have made with what has come from them.
  void AuditResidents(const std::vector<Member*>& ranks);
  void CountTokens(uint32_t made, uint32_t received);
  void FlushLater(const std::shared_ptr<ClientStream>& stream) { outbox_.push_back(stream); }

  const RouterOptions options_;
  const Hooks hooks_;
  const std::shared_ptr<DecideBudget> decide_budget_;
  core::PolicyOptions policy_options_;
  std::atomic<core::RequestId> next_id_;
  // This router's life.
  const uint64_t instance_;
  // Outlives the requests, which hold its tickets.
  TenantLimiter tenant_limiter_;
  // Refusals that the decision thread never saw, and what it last said of the pool.
  std::atomic<uint64_t> refused_full_{0}, refused_tenant_{0};
  std::atomic<int64_t> waiting_hint_{0};
  std::atomic<absl::Time> last_turn_{MonotonicNow()};
  ArrivalRate arrivals_;
  EventQueue events_;
  StreamSender sender_;

  // Decision thread only, from here on.
  record::RecordedScheduler scheduler_;
  Group group_;
  RequestTable requests_;
  StepRecorder recorder_;
  v1::RequestTotals totals_;
  LatencyRecorder latencies_;
  TenantTotals tenants_;
  EnergyBook energy_;
  ReplayBudget budget_;
  core::Parents parents_;
  // Parents' deadlines to come, microseconds; some may be of parents that have ended.
  std::set<std::pair<int64_t, std::string>> parent_deadlines_;
  // Of this epoch.
  std::optional<absl::Duration> shortest_step_;
  // Reports that it is the least of.
  int64_t steps_timed_ = 0;
  // Sums over accepted requests that have not ended (RequestRecord), and the group's KV.
  int64_t waiting_bytes_ = 0;
  int64_t committed_kv_ = 0;
  int64_t group_kv_ = 0;
  // Streams of workers, also those that are closing, and when they are looked at again.
  std::vector<std::weak_ptr<WorkerSession>> sessions_;
  absl::Time next_session_check_ = absl::InfiniteFuture();
  // When requests without a client are looked at; an entry may be out of date.
  std::deque<std::pair<absl::Time, core::RequestId>> resume_deadlines_;
  // Ended and kept, oldest first; may name some that are gone. And how many there are.
  std::deque<core::RequestId> ended_;
  size_t ended_count_ = 0;
  // Ended streams that may still wait for their clients, and until when.
  std::deque<std::pair<absl::Time, std::weak_ptr<ClientStream>>> lingering_;
  struct EarlyResume {
    core::RequestId id;
    v1::GenerateRequest request;
    std::shared_ptr<ClientStream> stream;
  };
  std::vector<EarlyResume> early_resumes_;
  // Of their token ids; those that were cancelled meanwhile count until the others are answered.
  int64_t early_bytes_ = 0;
  bool settled_ = false;
  absl::Time now_;
  const absl::Time started_;
  const absl::Time settle_end_;
  // Largest prompt + output that is accepted: every rank's limit of a sequence allows it and the largest KV
  // holds it; absent while no group was seen.
  std::optional<int64_t> max_sequence_;
  // When patience for missing reports ends; infinite while none is missing.
  absl::Time report_deadline_ = absl::InfiniteFuture();
  // When a group that should step and does not is taken to be stuck.
  absl::Time stall_deadline_ = absl::InfiniteFuture();
  // Some worker drains.
  bool some_drain_ = false;
  // The router itself does.
  bool draining_ = false;
  absl::Time drain_deadline_ = absl::InfiniteFuture();
  std::vector<std::shared_ptr<ClientStream>> outbox_;
  ReportView report_view_;
  std::vector<v1::RouterMessage> plan_messages_;
  // By rank: what it holds of an earlier router that nobody waits for, until a plan has told it to drop them.
  std::vector<std::vector<core::RequestId>> strangers_;

  std::atomic<bool> stop_requested_{false};
  std::thread thread_;
};

}  // namespace bfio::router

#endif  // BFIO_ROUTER_APP_DECISION_LOOP_H_
