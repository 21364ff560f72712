// The step loop of one rank: connects the router's plans, the engine and the group's barrier, by the protocol
// of proto/bfio/v1/worker.proto. Outside an epoch it waits; in an epoch it forms the barrier and then steps:
// apply the plans that are due, run the engine, meet the others, report. Without a router the group continues
// to step until all requests have ended, and their tokens are kept for the next router (HeldRequests). A
// report is only handed over here; the link's own thread converts and writes it. Threads: Run takes one
// thread until the rank's end; inbox() may be fed from any thread.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/cost/group_fit.h"
#include "common/cost/online_fit.h"
#include "common/telemetry/line_limiter.h"
#include "worker/barrier/barrier.h"
#include "worker/energy/energy_monitor.h"
#include "worker/engine/engine.h"
#include "worker/link/inbox.h"
#include "worker/link/messages.h"
#include "worker/link/rank_recorder.h"
#include "worker/link/step_log.h"

namespace bfio::worker {

// The requests that a rank keeps for the next router. A router that crashes loses its state of the running
// requests. The workers continue, and announce each request to the next router: the original assignment and
// every token since. Requests that ended within the last `retain` are announced too. Only requests with a
// note (messages.h) are kept. Bounded: memory for the prompt and all tokens of a request is reserved when it
// is admitted, so nothing grows beyond the bound. A request without enough free memory is not kept; ended
// requests are removed in favour of running ones. Threads: the step loop's. Cost: a look-up per kept request
// and step.
class HeldRequests {
 public:
  explicit HeldRequests(int64_t max_bytes) : max_bytes_(max_bytes) {}

  // How long ended requests are kept.
  void set_retain(absl::Duration retain) { retain_ = retain; }

  // Call when the engine has accepted a request. The request is kept if memory suffices.
  void Admit(SequenceRequest request, RequestNote note);
  // Adds a step's tokens and ends, and removes requests that ended too long ago.
  void Take(const StepOutput& output, absl::Time now);
  // Call when the request was cancelled.
  void Drop(Handle handle);

  // All kept requests, in messages of about a megabyte, oldest handle first.
  std::vector<Announcement> Announce(uint64_t epoch) const;

  size_t size() const { return held_.size(); }
  // Reserved memory.
  int64_t bytes() const { return bytes_; }

 private:
  struct Entry {
    HeldRequest held;
    int64_t bytes = 0;
    absl::Time ended;
  };

  // REQUIRES: ended_ is not empty.
  void DropOldestEnded();
  void End(Handle handle, Entry& entry, FinishCause cause, absl::Time now);

  const int64_t max_bytes_;
  absl::Duration retain_ = absl::ZeroDuration();
  absl::flat_hash_map<Handle, Entry> held_;
  // The requests in held_ that have ended, in the order of their ends.
  std::deque<Handle> ended_;
  int64_t bytes_ = 0;
};

// Cost and energy of a rank's steps, for its reports to the router.
//
// Purpose: keeps the fits of C, t_l and the prefill cost, and of the batches' cost by their tokens, over the
// rank's lifetime, independently of epochs and streams, and puts them into a report when they have changed,
// every OnlineStepFit::kBlock steps. If there is a meter, does the same for the energy of the rank's device.
// Threads: the step loop's.
class StepMeter {
 public:
  // `energy` is borrowed and may be null.
  explicit StepMeter(EnergyMonitor* energy) : energy_(energy) {}

  // Adds a step whose local part and barrier are over, and fills in the report's cost and energy if they have
  // changed.
  void Take(StepReport& report);
  // Absent until the cost is known.
  std::optional<BatchCost> batch_cost() const {
    return batches_.cost() ? std::optional(batches_.cost()->batch) : std::nullopt;
  }

 private:
  OnlineStepFit fit_;
  GroupFit batches_{{.prices = false}};
  EnergyMonitor* const energy_;
  int64_t reported_blocks_ = 0;
};

// The way to the router. Threads: Send from any thread.
class StepLink {
 public:
  virtual ~StepLink() = default;
  // Takes a message for that stream (Inbox::OnStreamUp); it is dropped if the stream is no longer the present
  // one. May wait for space in the queue while the router is behind, for a bounded time.
  virtual void Send(uint64_t stream, OutMessage message) = 0;
};

struct StepLoopOptions {
  // Name of this rank, unique in the router.
  std::string worker_id;
  std::string version;
  // Gets a row for every step whose barrier succeeded; borrowed, may be null.
  StepLog::Rank* step_log = nullptr;
  // Monitor of the rank's device; borrowed, may be null.
  EnergyMonitor* energy = nullptr;
  // Bound of the memory for the next router's requests (HeldRequests).
  int64_t resume_buffer_bytes = 0;
  // Share of the KV cache that stays free when a request starts, in [0, 1). A request that would leave less
  // is returned to the router. Exempt: one that reserves its largest size, and any on an empty rank.
  double kv_watermark = 0;
  // Notified of events; borrowed, may be null.
  RankRecorder* recorder = nullptr;
  // Expected time of a mean request on this rank in seconds, for the router; 0: not known.
  double service_s = 0;
  // Name of the group it belongs to; empty: the router assigns one.
  std::string group;
  // Identifies this run of the rank, drawn at random; 0: not sent.
  uint64_t instance = 0;
  // Digest of its engine's model (worker/engine/model/model.h), for Hello.model.
  std::string model;
};

class StepLoop {
 public:
  // `link` must outlive the loop.
  StepLoop(StepLoopOptions options, std::unique_ptr<Engine> engine, std::unique_ptr<BarrierEndpoint> endpoint,
           StepLink& link);
  StepLoop(const StepLoop&) = delete;
  StepLoop& operator=(const StepLoop&) = delete;

  Inbox& inbox() { return inbox_; }

  // Runs until Inbox::OnShutdown (OK), or until the engine or the barrier's endpoint fails permanently (its
  // error).
  absl::Status Run();

 private:
  absl::Status Greet(uint64_t stream);
  absl::Status RunEpoch(const Inbox::Enter& enter);
  // Answers with EpochReady; null when the group did not form.
  absl::StatusOr<std::unique_ptr<Barrier>> FormGroup(const Inbox::Enter& enter);
  absl::Status RunSteps(const Inbox::Enter& enter, Barrier& barrier);
  // False: the epoch is over, or the plan did not arrive in time (reported).
  absl::StatusOr<bool> AwaitPlan(const Inbox::Enter& enter, int64_t step);
  void ApplyDuePlans(const Inbox::Enter& enter, StepReport& report);
  void Apply(Plan& plan, StepReport& report);
  // Passes to the engine the time up to which the step may compute prompts.
  void SetLevel(int64_t step);
  absl::Status Admit(const SequenceRequest& request);
  void Drop(Handle handle);
  void Record(absl::FunctionRef<void(RankTelemetry&)> change) const;
  // Records the loop's present task.
  void Begin(LoopTask task, int64_t step = 0, absl::Duration timeout = absl::ZeroDuration()) const;
  // Ends the requests that failed in the step, and lists them in the report's `rejected`.
  void EndFailed(StepReport& report);
  // Fills in the results of engine and clock after the local part of the step, and the barrier's input.
  // Returns the engine's status.
  absl::Status RunLocal(const Inbox::Enter& enter, StepReport& report);
  // Waits for the other ranks in the step's barrier. An error if it or some rank's engine failed.
  absl::Status AwaitBarrier(const Inbox::Enter& enter, Barrier& barrier, bool engine_ok, StepReport& report);
  Contribution ContributionOf(const StepReport& report) const;

  const StepLoopOptions options_;
  const std::unique_ptr<Engine> engine_;
  const std::unique_ptr<BarrierEndpoint> endpoint_;
  StepLink& link_;
  Inbox inbox_;
  HeldRequests held_;
  StepMeter meter_;
  // Rate-limited, because clients can cause these lines.
  LineLimiter failures_;
  // The router that last placed requests here.
  uint64_t router_instance_ = 0;
  // The rank's group as of the router's last message; initially StepLoopOptions::group.
  std::string group_;

  // State of the present epoch.
  int64_t applied_plan_ = 0;
  // The level of the last plan, and the step in which that plan was applied.
  std::optional<double> level_;
  int64_t level_step_ = 0;
  // Requests that the engine took before the present step.
  int32_t admitted_ = 0;
  // The group waits for a plan before the next step.
  bool parked_ = true;
  // When the last barrier ended; absent before the first step and after an idle wait.
  std::optional<int64_t> barrier_end_ns_;
  // Scratch: plans of the present step. Freed after the step's local part, not before it.
  std::vector<Plan> due_;
};

}  // namespace bfio::worker
