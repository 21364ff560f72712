// The scheduling state machine of one group: the requests on its workers, and the plans for them. One
// interface for the kinds of groups, barrier_scheduler.h and independent_scheduler.h. A Cluster drives it and
// hands out its views; it takes requests out of the pool that all groups share. Accounts are those of
// group_accounts.h, decisions those of decision_maker.h; kinds differ in when a plan is due and for which
// steps. Threads: none inside; the Cluster's. Pure and deterministic.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "router/core/model/request.h"
#include "router/core/policy/policy.h"
#include "router/core/scheduler/decision_maker.h"
#include "router/core/scheduler/events.h"
#include "router/core/scheduler/group_accounts.h"
#include "router/core/scheduler/prompt_site.h"
#include "router/core/scheduler/request_pool.h"
#include "router/core/scheduler/scheduler_event.h"
#include "router/core/scheduler/scheduler_options.h"
#include "router/core/scheduler/scheduler_totals.h"

namespace bfio::core {

class Scheduler {
 public:
  // `pool` is borrowed.
  Scheduler(GroupKind kind, const SchedulerOptions& options, RequestPool* pool,
            std::unique_ptr<Policy> policy);
  virtual ~Scheduler() = default;
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  GroupKind kind() const { return kind_; }

  // --- events: see scheduler_event.h ---

  // Returns the ids that are no longer placed here, ascending.
  std::vector<RequestId> OpenEpoch(const std::vector<EpochMember>& members, uint32_t model,
                                   uint32_t lacks = 0);
  void CloseEpoch() { open_ = false; }
  // REQUIRES: WorkerOf(id).
  void Drop(RequestId id) { accounts_.Cancel(id); }
  // Removes all requests. Returns the ids that were placed here, ascending.
  std::vector<RequestId> Clear() { return OpenEpoch({}, 0); }
  // For events that set one of its fields; null: there is no such worker.
  WorkerSpec* Spec(WorkerIndex worker) { return Has(worker) ? &accounts_.worker(worker).spec : nullptr; }
  absl::Status OnReport(WorkerIndex worker, const StepReport& report);
  // `slots_elsewhere`: free slots in other open groups that take the same requests. `room`: what other groups
  // have room for. `answer`: the policy's decision, if it was called.
  std::optional<Plan> MakePlan(const core::MakePlan& event, int64_t slots_elsewhere, const Room& room,
                               std::optional<DecisionMaker::Answer>& answer);
  void SetPolicy(std::unique_ptr<Policy> policy) { maker_.SetPolicy(std::move(policy)); }
  const Policy& policy() const { return maker_.policy(); }
  // The placement rule that its policy uses while there are slots for all, and the step times of the others.
  const RuleChooser& chooser() const { return maker_.chooser(); }

  // --- views ---

  struct WorkerAccount {
    WorkerSpec spec;
    int32_t active = 0;
    int32_t inflight = 0;
    // Load of the next step from the requests that are active after the last report, in tokens.
    int64_t load_tokens = 0;
    int64_t reserved_kv_tokens = 0;
    int64_t last_step = 0;
    // The worker waits for a plan, and none is in flight.
    bool idle = false;
    // As in its last report.
    std::optional<PrefillReport> prefill;
  };
  WorkerAccount Account(WorkerIndex worker) const;
  int32_t num_workers() const { return accounts_.num_workers(); }
  // Whether the group's epoch is open.
  bool open() const { return open_; }
  // Of its epoch (core::OpenEpoch).
  const GroupAbility& ability() const { return ability_; }
  uint32_t model() const { return ability_.model; }
  // Requests placed on workers, in flight included.
  int64_t placed() const { return accounts_.placed(); }
  // The worker of a placed request.
  std::optional<WorkerIndex> WorkerOf(RequestId id) const { return accounts_.WorkerOf(id); }
  // The latest step that every rank has reported; without a barrier, the number of steps of the mean rank.
  int64_t reported_step() const { return reported_step_; }
  // Whether a rank has reported a step that others have not.
  virtual bool ReportsMissing() const = 0;
  // True when the group waits for a plan and gets none because it is idle.
  virtual bool Parked() const = 0;
  // Number of steps by which its plans are ahead of its reports, for the pool's clock.
  virtual int64_t Lead() const = 0;

  struct Slots {
    int64_t free = 0;
    int64_t total = 0;
    // Of the total those that the ranks use at present (StepReport::extra_slots).
    int64_t in_use = 0;
  };
  // Free slots are counted on workers that take new requests only.
  Slots slots() const;

  // Total KV memory of its workers, in tokens; what requests placed there hold of it.
  double KvTokens() const;
  int64_t HeldTokens() const;

  // Sums over the workers whose fitted costs include a cost of resident tokens.
  struct StepCost {
    // Time of a step that decodes the active requests, without the part that depends on resident tokens;
    // seconds.
    double fixed_s = 0;
    // Time per resident token, seconds.
    double per_token_s = 0;
  };
  StepCost StepCosts() const;

  // Appends the workers, those that decode where they have a slot and memory, as places to compute the
  // request's prompt. `assumed`: the cost where none is known.
  void AppendPromptSites(const RequestSpec& request, const GroupCost& assumed,
                         std::vector<PromptSite>& sites) const;

  const SchedulerTotals& totals() const { return totals_; }

 protected:
  // Makes a plan if one is due, for the steps of this kind of group. REQUIRES: open.
  virtual std::optional<Plan> Decide(bool force, std::optional<DecisionMaker::Answer>& answer) = 0;
  // The largest number of a plan for this worker.
  virtual int64_t PlannedStep(const GroupAccounts::Worker& worker) const = 0;
  // The worker waits for a plan, and none is in flight.
  virtual bool Idle(const GroupAccounts::Worker& worker) const = 0;
  // The accounts have taken a report of this step.
  virtual void CountReport(int64_t step) = 0;
  // A new epoch begins: steps count from 1 again. Returns the last step of the old one that was planned.
  virtual int64_t ResetSteps() = 0;

  bool Has(WorkerIndex worker) const { return worker >= 0 && worker < num_workers(); }
  // Gets a plan of `steps` from the policy, and records the call.
  std::optional<DecisionMaker::Answer> DecideAndRecord(const PlanSteps& steps, Plan& plan);
  // The pool's clock at step `step` of this epoch.
  int64_t ClockAt(int64_t step) const { return pool_->pool_clock().At(step - reported_step_); }

  const GroupKind kind_;
  const SchedulerOptions options_;
  RequestPool* const pool_;
  SchedulerTotals totals_;
  GroupAccounts accounts_;
  DecisionMaker maker_;
  bool open_ = false;
  GroupAbility ability_;
  // See reported_step().
  int64_t reported_step_ = 0;
  // The last step of this epoch for which the policy was called.
  int64_t decided_step_ = 0;
  // Scratch, kept to avoid allocation per step.
  PlanSteps steps_;
};

// Creates the scheduler for a group of this kind.
std::unique_ptr<Scheduler> MakeScheduler(GroupKind kind, const SchedulerOptions& options, RequestPool* pool,
                                         std::unique_ptr<Policy> policy);

}  // namespace bfio::core
