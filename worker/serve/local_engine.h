// The ranks of a process as one engine, without a router, for --serve.
//
// Purpose: does what vLLM does in an engine with several ranks. A request is assigned to a rank at once
// (rank_balancer.h, or the rank that it names) and waits there; a rank takes its waiting requests in order,
// at its step boundaries, as slots and KV allow. KV grows on demand: a request that is preempted, or refused
// by the rank's --admission, goes back into its rank's queue before all later ones, and after 8 refusals its
// largest size is reserved (core::RequestSpec::kRefusalsBeforeReserving). The ranks are the step loops of
// worker/link with the same barrier. This object replaces the router for them; its plans apply from the next
// step boundary on.
//
// Threads: the loops' threads call Send, any thread the handler's methods; one lock guards all state. A
// separate thread passes tokens to their sinks, so that no step waits for clients. Bounded: waiting requests
// and their prompt tokens, and undelivered tokens (at that bound a step waits).
#ifndef BFIO_WORKER_SERVE_LOCAL_ENGINE_H_
#define BFIO_WORKER_SERVE_LOCAL_ENGINE_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "router/core/model/request.h"
#include "router/frontend/request_handler.h"
#include "router/requests/limits.h"
#include "worker/link/inbox.h"
#include "worker/link/messages.h"
#include "worker/link/step_loop.h"
#include "worker/serve/rank_balancer.h"

namespace bfio::worker {

struct LocalEngineOptions {
  int ranks = 1;
  std::string version;
  // Upper bound of the requests that wait, over all ranks.
  int64_t max_waiting = 16384;
  int64_t max_waiting_tokens = int64_t{64} << 20;
  // Bounds for clients that do not read.
  router::StreamLimits stream;
  absl::Duration form_timeout = absl::Seconds(60);
  // Upper bound of the duration of a step of all ranks.
  absl::Duration step_timeout = absl::Minutes(10);
  // Called when the engine begins to serve, with the lock held: it must not call this object.
  std::function<void()> on_serving;
};

class LocalEngine final : public router::RequestHandler {
 public:
  explicit LocalEngine(LocalEngineOptions options);
  // REQUIRES: the step loops have ended.
  ~LocalEngine() override;

  // The link of that rank's step loop.
  StepLink& link(int rank);
  // `inboxes`: by rank; they must outlive this object.
  void Start(std::vector<Inbox*> inboxes);
  // Refuses new requests from now on.
  void Drain();
  // Waits until no request is left.
  bool EmptyWithin(absl::Duration timeout);
  // Ends all requests with that error, and refuses new ones.
  void Stop(const absl::Status& status);
  // The reason why the engine cannot continue; OK if it can.
  absl::Status failure();

  core::RequestId NextId() override { return next_id_.fetch_add(1, std::memory_order_relaxed); }
  // INVALID_ARGUMENT: there is no such rank, or there are more outputs than may wait; ALREADY_EXISTS: a live
  // request of the tenant has that request_id; RESOURCE_EXHAUSTED, UNAVAILABLE.
  absl::Status Submit(router::ClientRequest request, std::vector<Output> outputs) override;
  void Cancel(uint64_t sink_id, bool timed_out) override;
  absl::Status Abort(AbortRequest request, absl::AnyInvocable<void(absl::StatusOr<bool>) &&> done) override;
  absl::Status GetLoads(std::optional<uint32_t> rank,
                        absl::AnyInvocable<void(absl::StatusOr<router::Loads>) &&> done) override;
  router::Serving GetServing() const override;

 private:
  class Link;
  using Name = std::pair<std::string, std::string>;

  struct Request {
    router::ClientRequest client;
    std::shared_ptr<router::TokenSink> sink;
    // Ascends in the order of arrival.
    uint64_t number = 0;
    int rank = 0;
    bool running = false;
    // Whether it was placed as the only request of its plan, on a rank without other requests.
    bool alone = false;
    // Step of its rank since which it has waited, and the steps that it had waited when it was placed.
    int64_t waits_since = 0, waited_steps = 0;
    // Refusals by the rank for lack of KV, since its last token.
    int32_t refusals = 0;
    // Whether its largest size is reserved: it then waits until that fits on its rank, so that no rule
    // refuses it forever.
    bool reserves() const { return core::RequestSpec::ReservesAfter(refusals); }
    uint64_t seed = 0;
    std::vector<uint32_t> tokens;
    absl::Time arrived, began;
    std::optional<absl::Time> first_token;
  };

  using Requests = absl::flat_hash_map<Handle, std::unique_ptr<Request>>;

  struct Rank {
    std::unique_ptr<Link> link;
    Inbox* inbox = nullptr;
    EngineLimits limits;
    std::string offer;
    bool greeted = false, ready = false;
    // Requests that have not been placed, oldest first.
    std::deque<Handle> waiting;
    // Tokens of their prompts.
    int64_t waiting_tokens = 0;
    std::vector<Handle> cancellations;
    // Requests that are placed.
    int64_t running = 0;
    // The step of its last report, and the last step that a plan was sent for.
    int64_t step = 0, planned = 0;
    int32_t free_slots = 0;
    int64_t free_kv_tokens = 0;
    // The start of the current second; the tokens generated in it, and in the second before.
    absl::Time second;
    int64_t tokens_now = 0, tokens_before = 0;
  };

  // The arguments of one delivery to a sink.
  struct Delivery {
    std::shared_ptr<router::TokenSink> sink;
    // Index of the token.
    uint32_t index = 0;
    std::optional<uint32_t> token;
    // Log-probabilities of the token; null: not requested.
    std::unique_ptr<router::Logprobs> logprobs;
    // The request's last delivery.
    bool ends = false;
    absl::Status status;
    std::optional<router::Finish> finish;
  };

  void Receive(int rank, OutMessage message);
  void OnHello(Rank& rank, const Hello& hello) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnReady(Rank& rank, const EpochReady& ready) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnReport(int rank, const StepReport& report) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnTokens(Rank& rank, const StepOutput& output, absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnRejected(Rank& rank, const Rejection& rejection) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnPreempted(Rank& rank, Handle handle) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // A request that the rank no longer has. If it was cancelled meanwhile, there is nothing left to cancel:
  // its slot is among the free ones of the report.
  Requests::iterator FindOn(Rank& rank, Handle handle) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Counts a request that has entered its rank's queue (1) or left it (-1).
  void CountWaiting(const Request& request, int change) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SetRunning(Request& request, bool running) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Puts the request back into its rank's queue, before those that arrived later.
  void PutBack(Handle handle) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ReportToBalancer(int rank, absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Sends the rank the requests to begin and to drop with its next step.
  void SendPlan(Rank& rank) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Place(Rank& rank, Plan& plan) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // If all ranks are idle and a request waits, sends every rank a plan: all of them wait for one.
  void WakeIfIdle() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  SequenceRequest SequenceOf(Handle handle, const Request& request) const;

  router::Finish FinishOf(const Request& request, router::FinishReason reason, absl::Time now) const;
  // Removes the request, and passes its end to the sink.
  void End(Handle handle, const absl::Status& status, std::optional<router::Finish> finish)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Removes the request; null if there is no such request.
  std::unique_ptr<Request> Remove(Handle handle) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Fail(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Deliver(Delivery delivery) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Admission(const router::ClientRequest& request, int64_t outputs) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Add(const Output& output, router::ClientRequest request, absl::Time now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Prompt and output that every rank can hold: a request is checked before its rank is chosen.
  int64_t LongestSequence() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  router::RankLoad LoadOf(int rank, absl::Time now) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // The delivery thread.
  void Run();
  void HandOver(const Delivery& delivery, std::vector<std::shared_ptr<router::TokenSink>>& flushes);
  void BreakOffLingering(absl::Time now);

  const LocalEngineOptions options_;
  // Makes requests without a seed differ from one run to the next.
  const uint64_t salt_;
  std::atomic<core::RequestId> next_id_{1};

  mutable Mutex mutex_;
  std::vector<Rank> ranks_ ABSL_GUARDED_BY(mutex_);
  RankBalancer balancer_ ABSL_GUARDED_BY(mutex_);
  Requests requests_ ABSL_GUARDED_BY(mutex_);
  // The outputs of each call that have not ended.
  absl::flat_hash_map<Name, std::vector<Handle>> names_ ABSL_GUARDED_BY(mutex_);
  uint64_t submitted_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t waiting_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t waiting_tokens_ ABSL_GUARDED_BY(mutex_) = 0;
  int ready_ ABSL_GUARDED_BY(mutex_) = 0;
  // Whether the engines of all ranks compute log-probabilities.
  bool logprobs_ ABSL_GUARDED_BY(mutex_) = true;
  // The step after which all ranks wait for a plan, until they have one.
  std::optional<int64_t> idle_since_ ABSL_GUARDED_BY(mutex_);
  // Set: no further request is accepted.
  absl::Status refusal_ ABSL_GUARDED_BY(mutex_);
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  std::vector<Delivery> deliveries_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;

  // The delivery thread's: ended sinks, and the time by which their clients must have read everything.
  std::deque<std::pair<absl::Time, std::weak_ptr<router::TokenSink>>> lingering_;
  std::thread thread_;
};

}  // namespace bfio::worker

#endif  // BFIO_WORKER_SERVE_LOCAL_ENGINE_H_
