// The router's one decision thread. Only this thread accesses scheduling state (core::Cluster), the groups
// (GroupSet) and the requests (RequestLifecycle), so none of them locks. The edges post events to it. It
// carries out the groups' commands, hands tokens to the clients' sinks, and decides. One iteration: workers'
// events, deadlines, tokens out, clients' events, a decision for each group. Workers' events have their own
// lane in the mailbox and are taken first, so they never wait behind a flood of arrivals. Threads: the
// constructor starts the thread, Stop ends it. The handlers' methods may be called from any thread and never
// block.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/event_queue.h"
#include "common/base/mutex.h"
#include "router/admin/operator_handler.h"
#include "router/app/options.h"
#include "router/core/scheduler/cluster.h"
#include "router/frontend/request_handler.h"
#include "router/group/energy_book.h"
#include "router/group/group_set.h"
#include "router/group/worker_events.h"
#include "router/record/recorder.h"
#include "router/requests/request_lifecycle.h"
#include "router/requests/token_sink.h"

namespace bfio::router {

// The thread that writes to the clients. A step touches every active stream, and starting hundreds of writes
// takes milliseconds (docs/results.md), which the decision thread must not spend. Threads: Submit from any
// thread.
class StreamSender {
 public:
  StreamSender();
  // Flushes the submitted streams, then stops.
  ~StreamSender();

  // Flushes each stream soon, on this thread; leaves `streams` empty. A stream is queued at most once at a
  // time (its dirty flag), so the queue is bounded by the number of open streams.
  void Submit(std::vector<std::shared_ptr<TokenSink>>& streams);

 private:
  void Run();
  bool Ready() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_ || !queue_.empty(); }

  Mutex mutex_;
  std::vector<std::shared_ptr<TokenSink>> queue_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

// Time limit of a decision's search. The clock behind core::StopSignal: the core has no clock and polls this
// one. Threads: the decision thread's.
class DecideBudget {
 public:
  // REQUIRES: budget > 0.
  explicit DecideBudget(absl::Duration budget) : budget_(budget) {}

  // Starts the time of a decision.
  void Begin(absl::Time now) { end_ = now + budget_; }
  // True when the decision's time is over. Costs a read of the clock, some tens of nanoseconds.
  bool Over() const { return MonotonicNow() >= end_; }

 private:
  const absl::Duration budget_;
  absl::Time end_ = absl::InfiniteFuture();
};

// The decision thread checks each queue at least this often.
inline constexpr absl::Duration kLongestWait = absl::Seconds(5);

class DecisionThread final : public RequestHandler, public WorkerHandler, public OperatorHandler {
 public:
  struct Hooks {
    // Called with true when the router starts to serve and with false when it stops, for health checks. Runs
    // on the decision thread, as does on_step.
    std::function<void(bool)> on_serving;
    std::function<void(const std::shared_ptr<const StepSummary>&)> on_step;
  };

  // The parts that decide, made from the options.
  struct Parts {
    core::Cluster::PolicyFactory policies;
    std::unique_ptr<core::Lookahead> lookahead;
    // Bounds every decision; null: no bound.
    std::shared_ptr<DecideBudget> budget;
    // Records every event and outcome; null: no recording.
    std::unique_ptr<record::Recorder> recorder;
    core::RequestId first_id = 1;
    // Identifies this run of the router (common/base/router_instance.h).
    uint64_t instance = 1;
  };

  // REQUIRES: options and parts have been checked; the policy can be created.
  DecisionThread(const RouterOptions& options, Parts parts, Hooks hooks);
  ~DecisionThread() override;

  // Refuses new requests, lets accepted ones run for at most options.drain_timeout, ends the rest with
  // UNAVAILABLE, closes the workers' connections and stops the thread. Blocks until then.
  void Stop();

  // --- any thread ---

  core::RequestId NextId() override { return ids_.Next(); }
  absl::Status Submit(ClientRequest request, std::vector<Output> outputs) override;
  void Cancel(uint64_t sink_id, bool timed_out) override;
  absl::Status Abort(AbortRequest request, absl::AnyInvocable<void(absl::StatusOr<bool>) &&> done) override;
  absl::Status GetLoads(std::optional<uint32_t> rank,
                        absl::AnyInvocable<void(absl::StatusOr<Loads>) &&> done) override;
  Serving GetServing() const override {
    return {ready_.load(std::memory_order_relaxed) && !stop_requested_.load(std::memory_order_relaxed),
            max_sequence_tokens_.load(std::memory_order_relaxed), hands_over_.load(std::memory_order_relaxed),
            computes_none_.load(std::memory_order_relaxed)};
  }

  void OnWorkerEvent(std::shared_ptr<WorkerChannel> channel, WorkerEvent event) override;

  absl::Status State(absl::AnyInvocable<void(absl::StatusOr<RouterState>) &&> done) override;
  absl::Status DrainWorker(std::string worker_id, Done done) override;
  absl::Status UndrainWorker(std::string worker_id, Done done) override;
  absl::Status SetPolicy(PolicyChange change, Done done) override;
  // Time since the thread last looked at its events. It does so at least every kLongestWait, so a much larger
  // value means that it is stuck.
  absl::Duration SinceLastIteration() const override;
  bool Stopping() const override { return stop_requested_.load(std::memory_order_relaxed); }

 private:
  using Event = EventQueue::Event;

  // Any thread. RESOURCE_EXHAUSTED when `limit` clients' events are queued, UNAVAILABLE after Stop.
  absl::Status PostClient(int64_t limit, Event event);
  // Bounds of the queued clients' events. The bound is lower for calls that clients can make without limits,
  // so that a flood of them does not exclude new requests, and higher for operators' calls.
  int64_t ArrivalsLimit() const { return 2 * options_.max_waiting + 1024; }
  int64_t CallsLimit() const { return std::max(ArrivalsLimit() - 1024, ArrivalsLimit() / 2); }
  int64_t OperatorsLimit() const { return ArrivalsLimit() + 1024; }

  void Run();
  // One iteration; true when the thread must end.
  bool RunOnce();
  void OnEvent(const std::shared_ptr<WorkerChannel>& channel, WorkerEvent event);
  void RunTimers();
  absl::Duration UntilNextDeadline() const;
  void Decide();
  void DecideOnce();
  bool DrainDone();
  void BreakOffStuckChannels();

  // Carries out the groups' commands, in order. `rank_offset`: number of ranks in the groups before the one
  // that decided.
  void CarryOut(uint32_t rank_offset = 0);
  void OnMembershipChanged();
  uint32_t RanksBefore(core::GroupIndex group) const;
  WorkerChannel* ChannelOf(MemberId member) const;

  RouterState MakeState() const;
  absl::StatusOr<Loads> MakeLoads(std::optional<uint32_t> rank) const;
  absl::Status ChangePolicy(const PolicyChange& change);

  const RouterOptions options_;
  const Hooks hooks_;
  RequestIds ids_;
  const std::shared_ptr<DecideBudget> budget_;
  std::atomic<absl::Time> last_iteration_{MonotonicNow()};
  EventQueue events_;
  // Requests in the mailbox (a call with several outputs counts once for each); bytes of their prompts.
  std::atomic<int64_t> mailbox_requests_{0}, mailbox_bytes_{0};
  // The values that GetServing returns.
  std::atomic<bool> ready_{false}, hands_over_{false}, computes_none_{false};
  std::atomic<int64_t> max_sequence_tokens_{0};
  Tenants tenants_;
  OverloadControl overload_;
  StreamSender sender_;

  // The members below are used by the decision thread only.
  const std::unique_ptr<record::Recorder> recorder_;
  core::Cluster cluster_;
  RequestLifecycle requests_;
  GroupSet groups_;
  EnergyBook energy_;
  // Channels of members; all connections, including closing ones; when these are checked next.
  absl::flat_hash_map<MemberId, std::shared_ptr<WorkerChannel>> channels_;
  std::vector<std::weak_ptr<WorkerChannel>> watched_;
  absl::Time next_channel_check_ = absl::InfiniteFuture();
  absl::Time now_;
  const absl::Time started_;
  bool serving_ = false;
  bool draining_ = false;
  absl::Time drain_deadline_ = absl::InfiniteFuture();
  // Scratch space.
  std::vector<Event> worker_events_, client_events_;
  Commands commands_;
  std::vector<Assignment> assignments_;

  std::atomic<bool> stop_requested_{false};
  std::thread thread_;
};

}  // namespace bfio::router
