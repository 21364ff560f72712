// The scheduling state machine: events in, plans out.
//
// Purpose: everything the router believes about the group and the waiting pool lives here, and every decision
// is taken here. The router's decision thread, the simulator and the replay tool drive the same class: they
// differ only in where events come from and where plans go.
//
// Threads: none inside; owned and called by one thread. No I/O, no clock: steps are numbered by the events
// themselves. Deterministic: the same events in the same order give the same plans.
//
// Accounts. A worker's load is kept by dead reckoning: a request in its j-th step counts s + j - 1, so a
// resident set grows by its size each step and O(1) work per report keeps it exact. Reports are the truth: a
// difference is counted as drift and adopted, each of those who were there the step before taking an equal
// share along, so that what a request that ends takes away is right too where increments are common to all.
// An assignment occupies its slot and KV from the moment it is planned ("in flight") until a report
// acknowledges its plan, so no worker is over-filled or double-counted when plans are pipelined.
//
// The rhythm (proto/bfio/v1/worker.proto says it from the workers' side):
//   lockstep    a plan for step k+1 follows the reports of step k
//   pipelined   a plan for step k+2 follows the reports of step k; for k+1 when the group is idle
// An idle group with nothing to place gets no plan: it is parked until a request arrives.
//
// Workers that share no barrier (SchedulerOptions::coupled false) are each in a group of their own: every one
// counts its own steps and is idle by itself. Whoever arrives is decided upon at once; a worker gets a plan
// when there is something for it. Such plans are numbered, not for a step: it applies all that have come at
// its next step boundary. The clock that ages are counted in ticks when as many reports have come as there
// are workers.
#ifndef BFIO_ROUTER_CORE_SCHEDULER_SCHEDULER_H_
#define BFIO_ROUTER_CORE_SCHEDULER_SCHEDULER_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "router/core/admission/kv_gate.h"
#include "router/core/admission/wait_gate.h"
#include "router/core/lookahead/lookahead.h"
#include "router/core/model/request.h"
#include "router/core/model/snapshot.h"
#include "router/core/policy/policy.h"
#include "router/core/scheduler/events.h"
#include "router/core/scheduler/outlook_builder.h"
#include "router/core/scheduler/residents.h"
#include "router/core/scheduler/scheduler_state.h"
#include "router/core/scheduler/tenant_service.h"
#include "router/core/scheduler/waiting_pool.h"

namespace bfio::core {

struct SchedulerOptions {
  PlanMode plan_mode = PlanMode::kLockstep;
  // Workers meet in a barrier and step together; false: each steps by itself, and plan_mode,
  // report_delay_steps, wait and prefill.pieces mean nothing.
  bool coupled = true;
  // Bound of the waiting pool, in requests.
  int64_t max_waiting = 4096;
  // How many requests from the front of the pool a policy may see, if that is more than the free slots;
  // bounds the decision's cost.
  int64_t window = 4096;
  // Reports arrive this many steps late: every plan reaches that much further ahead, so that it is for a step
  // still to come. 0 in the router; the simulator asks what stale reports cost.
  int32_t report_delay_steps = 0;
  // Who may enter which worker's KV memory (router/core/admission/kv_gate.h). REQUIRES: CheckKvGate is
  // content with it and the lookahead.
  KvGateOptions admission;
  // Who is kept back until enough of its like wait (router/core/admission/wait_gate.h).
  WaitGateOptions wait;
  // After so many steps in the pool a request that fits nowhere holds a worker (policy/room.h). At least 1.
  int64_t hold_after_steps = kHoldAfterSteps;
  // Prompts as load.
  PrefillOptions prefill;
};

class Scheduler {
 public:
  // Without a lookahead nothing is predicted.
  Scheduler(const SchedulerOptions& options, std::unique_ptr<Policy> policy,
            std::unique_ptr<Lookahead> lookahead = nullptr);
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // --- the waiting pool ---

  // RESOURCE_EXHAUSTED when the pool is full; ALREADY_EXISTS when the id is known.
  absl::Status Enqueue(const RequestSpec& request);

  // Puts a request whose worker was lost, or has preempted it, back, ahead of its priority class, whatever
  // the pool's bound says; it has begun, so batches do not wait for it. REQUIRES: the id is not known
  // (OpenEpoch has just returned it as displaced, or OnReport has taken it off its worker).
  void Requeue(const RequestSpec& request);

  enum class CancelOutcome {
    kUnknown,   // no such request
    kDequeued,  // it was waiting and is gone
    kDropped,   // it is on a worker, which the next plan tells to drop it
  };
  CancelOutcome Cancel(RequestId id);

  // --- membership ---

  // Starts a new epoch. Placed requests that some member holds stay placed there; the ids of all other placed
  // requests are returned: their worker is gone. Requests that a member holds and nobody knows are dropped by
  // the first plan, except those a member brings along (`adopted`), which are placed there from now on. Steps
  // count from 1 again; the workers wait for the plan of step 1.
  std::vector<RequestId> OpenEpoch(std::vector<EpochMember> members);

  // Stops the present epoch without opening another: no plans until OpenEpoch. Placed requests are
  // remembered.
  void CloseEpoch();

  // A draining worker takes no new requests.
  void SetAcceptsNew(WorkerIndex worker, bool accepts_new);

  // From the next plan on its steps are reckoned to take time_offset + time_per_token * load.
  // REQUIRES: both finite, time_per_token > 0.
  void SetTime(WorkerIndex worker, double time_per_token, double time_offset);
  // From the next plan on a mean request is reckoned to take so long there. REQUIRES: finite, above 0.
  void SetServiceTime(WorkerIndex worker, double service_time);

  // --- steps ---

  // Takes one rank's report. INVALID_ARGUMENT when it contradicts the state (unknown rank, a step that does
  // not follow the rank's last one); the state is unchanged then. Finished, rejected or preempted ids that
  // are not on that worker are ignored and counted. Preempted ones are known no more: whoever has them puts
  // them back with Requeue, with what they have made as part of their prompts.
  absl::Status OnReport(WorkerIndex worker, const StepReport& report);

  // Decides. Returns nothing when no plan is due: the epoch is closed, the plan for the target step is out
  // already, or the group is idle and there is nothing to place or drop. Call it after every event that may
  // have changed that. `force` plans one step further than the complete reports allow, from the reports that
  // are in, for a caller whose patience for the missing ones has run out.
  std::optional<Plan> MakePlan(bool force = false);

  void SetPolicy(std::unique_ptr<Policy> policy) { policy_ = std::move(policy); }
  const Policy& policy() const { return *policy_; }
  const Lookahead& lookahead() const { return *lookahead_; }

  // --- views ---

  struct WorkerAccount {
    WorkerSpec spec;
    int32_t active = 0;
    int32_t inflight = 0;
    // What the requests that are active after the last report will load the next step with.
    int64_t load_tokens = 0;
    int64_t reserved_kv_tokens = 0;
    int64_t last_step = 0;
    // It waits for a plan, and none is on its way.
    bool idle = false;
    // As it reported.
    std::optional<PrefillReport> prefill;
  };
  WorkerAccount Account(WorkerIndex worker) const;
  int32_t num_workers() const { return static_cast<int32_t>(workers_.size()); }
  // Those that are kept back included.
  int64_t waiting() const { return pool_.size() + wait_.size(); }
  // Requests placed on workers, in flight included.
  int64_t placed() const { return static_cast<int64_t>(placed_.size()); }
  // The step that a request enqueued now counts from; never less than before.
  int64_t NextStep() const { return ClockAt((options_.coupled ? planned_step_ : reported_step_) + 1); }
  // It waits or is placed.
  bool Knows(RequestId id) const { return Waits(id) || placed_.contains(id); }
  // The worker a placed request is on.
  std::optional<WorkerIndex> WorkerOf(RequestId id) const;
  // The latest step that every rank has reported; where they are not coupled, what the clock says.
  int64_t reported_step() const { return reported_step_; }
  // Some rank has reported a step that others have not.
  bool ReportsMissing() const { return arrived_ > 0; }
  // True when the group waits for a plan and gets none because there is nothing to do.
  bool Parked() const;

  using Totals = SchedulerTotals;
  const Totals& totals() const { return totals_; }

  // --- copies ---

  // All that the plans to come depend on, but for what policy and lookahead remember (scheduler_state.h).
  SchedulerState Save() const;
  // Takes that state on; policy and lookahead keep what they know. REQUIRES: nothing has been enqueued and no
  // epoch opened so far. INVALID_ARGUMENT, the scheduler being of no more use, when the state contradicts
  // itself.
  absl::Status Restore(const SchedulerState& state);

 private:
  enum class Where : uint8_t { kInflight, kActive };
  struct Placed {
    RequestSpec spec;
    WorkerIndex worker = 0;
    Where where = Where::kInflight;
    // In flight: the step it is expected to enter in. Active: the step it first ran in, so that its load in
    // step k is spec.prefill_tokens + k - first_step.
    int64_t first_step = 0;
    // In flight: the apply_step of its plan.
    int64_t plan = 0;
    // Its place among the worker's residents.
    int32_t index = 0;
    // Active: its share of the worker's drift, tokens.
    int64_t drift = 0;
    // When it entered the pool, for its age if it goes back there.
    int64_t enqueued_step = 0;
    // The worker has been told to drop it.
    bool dropped = false;
  };
  // One placement or drop that a plan carried and its worker has not acknowledged.
  struct Inflight {
    int64_t apply_step;
    RequestId id;
    bool drop;
  };
  struct Worker {
    WorkerSpec spec;
    int32_t active = 0;
    // Sum over active requests of (prefill - first_step): load in step k is base + active * k.
    int64_t base = 0;
    // What of `base` the reckoning does not account for: differences to reports, the requests' shares
    // included.
    int64_t drift = 0;
    int64_t reserved_kv = 0;
    int64_t last_step = 0;
    // Of the last report, those that ended in its step included.
    int64_t reported_load = 0;
    // Not coupled: the largest apply_step of its plans, and of those that it has applied.
    int64_t planned_step = 0;
    int64_t applied = 0;
    // The last report said that the group is idle.
    bool idle = true;
    // Placements among `inflight`, and the sum of (prefill - first_step) over them.
    int32_t inflight_placements = 0;
    int64_t inflight_base = 0;
    // Their prompts.
    int64_t inflight_prefill = 0;
    std::optional<PrefillReport> prefill;
    // Planned, not acknowledged; in order of apply_step.
    std::vector<Inflight> inflight;
    // Cancellations waiting for the next plan.
    std::vector<RequestId> drops;
  };

  using PlacedIterator = absl::flat_hash_map<RequestId, Placed>::iterator;

  // Places what a member of a new epoch brings along and nobody knows.
  void Adopt(WorkerIndex index, absl::Span<const RequestSpec> adopted, Worker& worker,
             absl::flat_hash_map<RequestId, Placed>& kept);

  bool Waits(RequestId id) const { return pool_.Contains(id) || wait_.Contains(id); }
  // Placing it is what its tenant pays the prompt for.
  static bool PaysPrompt(const RequestSpec& spec) { return spec.generated_tokens == 0 && !spec.waited_steps; }
  // Lets those into the pool for whom a batch is worth running in the plan of this step.
  void TakeBatches(int64_t step, bool idle);
  // True when the reports of reported_step() say that the workers wait for a plan.
  bool GroupIdle() const;
  int64_t TargetStep(bool force) const;
  // Not coupled: the step of this worker that a plan made now is expected to be applied in, whatever other
  // plans are on their way. Coupled: `step`.
  int64_t TargetOf(const Worker& worker, int64_t step) const;
  // The apply_step of such a plan: not coupled, a number that grows with each.
  int64_t NumberOf(const Worker& worker, int64_t step) const;
  std::optional<Plan> PlanUncoupled();
  // Not coupled: it waits for a plan, and none is on its way.
  static bool AwaitsPlan(const Worker& worker) {
    return worker.idle && worker.planned_step <= worker.applied;
  }
  // It waits for a plan to go on with what it holds.
  static bool HeldUp(const Worker& worker) { return AwaitsPlan(worker) && worker.active > 0; }
  bool HasDrops() const;
  // Step `step` of this epoch on the clock that waiting ages are counted in.
  int64_t ClockAt(int64_t step) const { return epoch_base_ + step; }
  // Finds `id` if it is placed on `worker`, else counts it as unknown and returns end().
  PlacedIterator FindOn(WorkerIndex worker, RequestId id);
  // Forgets a placed request and takes it out of its worker's account and residents.
  void Remove(PlacedIterator it);
  void Acknowledge(WorkerIndex index, const StepReport& report);
  void TakePreempted(WorkerIndex index, const StepReport& report);
  void TakeDrift(WorkerIndex index, int64_t step, int64_t tokens);
  void AdvanceReportedStep();
  void CountReport();
  void TakeHints(WorkerIndex index, const StepReport& report);
  void BuildViews(int64_t step);
  // Asks the policy about what waits, into `assignments_`. True: its search was ended early.
  bool AskPolicy(int64_t step, Plan& plan);
  // What admission says of the views and the window, for a plan for this step. REQUIRES: it is active.
  KvOutlook LookAtKv(int64_t step);
  // What of the pool a policy sees: never fewer requests than there are free slots, or slots would stay
  // empty. After BuildViews.
  absl::Span<WaitingView> Window() {
    return pool_.mutable_views().subspan(0, static_cast<size_t>(std::max(options_.window, free_slots_)));
  }
  absl::Status RestoreWorker(WorkerIndex index, const SchedulerState::Worker& from);
  void FillTenantExcess();
  Outlook BuildOutlook(int64_t step);
  void DiscardViolations(const Snapshot& snapshot);
  // Where admission looks ahead: a request that has held a worker is placed as soon as it fits anywhere. True
  // when it has been; `kv` tells of the room without it then.
  bool ServeHolder(int64_t step, const KvOutlook& kv, Plan& plan);
  // By views_ and kv_room_.
  bool FitsNow(const WaitingView& request, WorkerIndex worker) const;
  // Carries out `assignments_`.
  void PlaceAll(int64_t step, Plan& plan);
  void Place(const Assignment& assignment, int64_t step, Plan& plan);
  void SendDrops(int64_t step, Plan& plan);
  // Prompt tokens that the worker has to compute at the start of `step`; of those on their way `fresh` begin
  // in that step. REQUIRES: it reports them.
  int64_t PendingPrefill(const Worker& worker, int64_t step, int64_t fresh) const;
  // After PlaceAll.
  std::optional<int64_t> ChoosePiece(int64_t step, const Plan& plan);

  SchedulerOptions options_;
  std::unique_ptr<Policy> policy_;
  std::unique_ptr<Lookahead> lookahead_;
  WaitingPool pool_;
  TenantService service_;
  absl::flat_hash_map<RequestId, Placed> placed_;
  std::vector<Worker> workers_;
  Residents residents_;
  OutlookBuilder outlook_;
  KvGate gate_;
  WaitGate wait_;
  // The waiting views name curves of an outlook.
  bool curves_set_ = false;
  bool open_ = false;
  int64_t reported_step_ = 0;
  // Largest apply_step sent out in this epoch; where workers are not coupled, each has its own.
  int64_t planned_step_ = 0;
  // Ranks that have reported step reported_step_ + 1.
  int32_t arrived_ = 0;
  // Over all workers, in `views_`.
  int64_t free_slots_ = 0;
  // Steps of earlier epochs.
  int64_t epoch_base_ = 0;
  // Of this epoch, where workers are not coupled.
  int64_t reports_ = 0;
  // The last step of this epoch that the policy was asked about.
  int64_t decided_step_ = 0;
  // The request that holds a worker.
  std::optional<RequestId> holder_;
  // Of the last plan.
  std::optional<int64_t> piece_;
  Totals totals_;

  // Scratch, kept to avoid allocation per step.
  std::vector<WorkerView> views_;
  std::vector<Assignment> assignments_;
  std::vector<char> taken_;
  std::vector<KvGate::Worker> kv_workers_;
  std::vector<WaitGate::Waiting> released_;
  KvRoom kv_room_;
  std::vector<int64_t> pending_;
};

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_SCHEDULER_SCHEDULER_H_
