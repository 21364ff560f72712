// The router's one decision thread.
//
// Purpose: it alone owns scheduling state (core::Cluster), the groups (GroupSet) and the requests
// (RequestLifecycle), so none of them locks. The edges post events to it; it carries out the groups'
// commands, hands tokens to the clients' sinks, and decides. A turn: workers' events, deadlines, tokens out,
// clients' events, a decision for each group. Workers' events are taken first and have a lane of their own in
// the mailbox, so that they never wait behind a flood of arrivals.
//
// Threads: the constructor starts the thread, Stop ends it. The handlers' methods may be called from any
// thread and never block.
#ifndef BFIO_ROUTER_APP_DECISION_THREAD_H_
#define BFIO_ROUTER_APP_DECISION_THREAD_H_

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
#include "router/admin/operator_handler.h"
#include "router/app/decide_budget.h"
#include "router/app/options.h"
#include "router/core/scheduler/cluster.h"
#include "router/frontend/request_handler.h"
#include "router/frontend/stream_sender.h"
#include "router/group/energy_book.h"
#include "router/group/group_set.h"
#include "router/group/worker_channel.h"
#include "router/record/recorder.h"
#include "router/requests/request_lifecycle.h"
#include "router/worker_link/worker_events.h"

namespace bfio::router {

// The decision thread checks each queue at least this often.
inline constexpr absl::Duration kLongestTurn = absl::Seconds(5);

class DecisionThread final : public RequestHandler, public WorkerHandler, public OperatorHandler {
 public:
  struct Hooks {
    // The router has begun (true) or ceased to serve: for health checks. Called on the decision thread, as is
    // on_step.
    std::function<void(bool)> on_serving;
    std::function<void(const std::shared_ptr<const StepSummary>&)> on_step;
  };

  // What the thread decides with, made out of the options.
  struct Parts {
    core::Cluster::PolicyFactory policies;
    std::unique_ptr<core::Lookahead> lookahead;
    // Bounds every decision; null: unbounded.
    std::shared_ptr<DecideBudget> budget;
    // Every event and outcome goes there; null: nowhere.
    std::unique_ptr<record::Recorder> recorder;
    core::RequestId first_id = 1;
    // This router's life (common/base/router_instance.h).
    uint64_t instance = 1;
  };

  // REQUIRES: options and parts have been checked; the policy can be made.
  DecisionThread(const RouterOptions& options, Parts parts, Hooks hooks);
  ~DecisionThread() override;

  // Refuses new requests, lets the accepted ones run for at most options.drain_timeout, ends the rest with
  // UNAVAILABLE, closes the workers' connections and stops the thread. Blocks until then.
  void Stop();

  // --- any thread ---

  core::RequestId NextId() override { return ids_.Next(); }
  absl::Status Submit(core::RequestId id, ClientRequest request, std::shared_ptr<TokenSink> sink) override;
  void Cancel(uint64_t sink_id, bool timed_out) override;
  absl::Status Abort(AbortRequest request, absl::AnyInvocable<void(absl::StatusOr<bool>) &&> done) override;
  absl::Status GetLoads(std::optional<uint32_t> rank,
                        absl::AnyInvocable<void(absl::StatusOr<Loads>) &&> done) override;
  Serving GetServing() const override {
    return {ready_.load(std::memory_order_relaxed) && !stop_requested_.load(std::memory_order_relaxed),
            max_sequence_tokens_.load(std::memory_order_relaxed)};
  }

  void OnWorkerEvent(std::shared_ptr<WorkerChannel> channel, WorkerEvent event) override;

  absl::Status State(absl::AnyInvocable<void(absl::StatusOr<RouterState>) &&> done) override;
  absl::Status DrainWorker(std::string worker_id, Done done) override;
  absl::Status UndrainWorker(std::string worker_id, Done done) override;
  absl::Status SetPolicy(PolicyChange change, Done done) override;
  // Since the thread last turned to what waits. It does so every kLongestTurn at least, so much more says
  // that it is stuck.
  absl::Duration SinceTurn() const override;

  const ArrivalRate& arrivals() const { return requests_.arrivals(); }

 private:
  using Event = EventQueue::Event;

  // Any thread. RESOURCE_EXHAUSTED when `limit` clients' events wait, UNAVAILABLE after Stop.
  absl::Status PostClient(int64_t limit, Event event);
  // Clients' events that may wait when a new request comes; fewer for calls that others cause at will, so
  // that no flood of them keeps requests out, and more for operators'.
  int64_t ArrivalsLimit() const { return 2 * options_.max_waiting + 1024; }
  int64_t CallsLimit() const { return std::max(ArrivalsLimit() - 1024, ArrivalsLimit() / 2); }
  int64_t OperatorsLimit() const { return ArrivalsLimit() + 1024; }

  void Run();
  // One round; true when the thread is to end.
  bool Turn();
  void OnEvent(const std::shared_ptr<WorkerChannel>& channel, WorkerEvent event);
  void RunTimers();
  absl::Duration UntilNextDeadline() const;
  void Decide();
  bool DrainDone();
  void BreakOffStuckChannels();

  // Carries out the groups' commands, in order. `rank_offset`: ranks of the groups before the one that is
  // deciding.
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
  std::atomic<absl::Time> last_turn_{MonotonicNow()};
  EventQueue events_;
  // Of the prompts in it.
  std::atomic<int64_t> mailbox_bytes_{0};
  // What GetServing says.
  std::atomic<bool> ready_{false};
  std::atomic<int64_t> max_sequence_tokens_{0};
  Tenants tenants_;
  OverloadControl overload_;
  StreamSender sender_;

  // Decision thread only, from here on.
  const std::unique_ptr<record::Recorder> recorder_;
  core::Cluster cluster_;
  RequestLifecycle requests_;
  GroupSet groups_;
  EnergyBook energy_;
  // Of members; and all connections, also those that are closing, with when they are looked at again.
  absl::flat_hash_map<MemberId, std::shared_ptr<WorkerChannel>> channels_;
  std::vector<std::weak_ptr<WorkerChannel>> watched_;
  absl::Time next_channel_check_ = absl::InfiniteFuture();
  absl::Time now_;
  const absl::Time started_;
  bool serving_ = false;
  bool draining_ = false;
  absl::Time drain_deadline_ = absl::InfiniteFuture();
  // Scratch.
  std::vector<Event> worker_events_, client_events_;
  Commands commands_;
  std::vector<Assignment> assignments_;

  std::atomic<bool> stop_requested_{false};
  std::thread thread_;
};

}  // namespace bfio::router

#endif  // BFIO_ROUTER_APP_DECISION_THREAD_H_
