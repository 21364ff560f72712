// Asks the policy of one group, and holds it to its contract.
//
// Purpose: builds a policy's snapshot from accounts and pool (projected loads, capacity, outlook, what
// admission lets in), and its answer into placements. Borrows accounts and pool. Threads: one.
#ifndef BFIO_ROUTER_CORE_SCHEDULER_DECISION_MAKER_H_
#define BFIO_ROUTER_CORE_SCHEDULER_DECISION_MAKER_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "router/core/admission/kv_gate.h"
#include "router/core/model/free_capacity.h"
#include "router/core/model/snapshot.h"
#include "router/core/policy/policy.h"
#include "router/core/prefill/prefill_view.h"
#include "router/core/scheduler/group_accounts.h"
#include "router/core/scheduler/kv_hold.h"
#include "router/core/scheduler/outlook_builder.h"
#include "router/core/scheduler/request_pool.h"
#include "router/core/scheduler/scheduler_options.h"
#include "router/core/scheduler/scheduler_state.h"

namespace bfio::core {

class DecisionMaker {
 public:
  // Of a policy that was asked.
  struct Answer {
    bool stopped_early = false;
    std::optional<double> gap;
  };

  // What is borrowed outlives this.
  DecisionMaker(const SchedulerOptions& options, RequestPool* pool, GroupAccounts* accounts,
                SchedulerTotals* totals, std::unique_ptr<Policy> policy)
      : options_(options),
        pool_(pool),
        accounts_(accounts),
        totals_(totals),
        policy_(std::move(policy)),
        gate_(options.admission),
        hold_(options.hold_after_steps) {}

  // Decides about what waits, and of ranks in a barrier up to which level they compute prompts; nothing when
  // there was nothing to ask the policy about. `barrier`: it is also asked where no slot is free, because it
  // is asked once a step and learns from that. What is placed before the policy is asked goes into the plan
  // at once, all else with PlaceAll.
  std::optional<Answer> Ask(const PlanSteps& steps, bool barrier, int64_t reported_step, Plan& plan);
  // Slots that are free in other groups, which take their share of what waits.
  void SetSlotsElsewhere(int64_t slots) { slots_elsewhere_ = slots; }
  // The decision is to place no other request.
  bool empty() const { return decision_.assignments.empty(); }
  // Carries out what was decided.
  void PlaceAll(const PlanSteps& steps, Plan& plan);

  void SetPolicy(std::unique_ptr<Policy> policy) { policy_ = std::move(policy); }
  const Policy& policy() const { return *policy_; }
  // The request that holds a worker.
  std::optional<RequestId> holder() const { return hold_.holder(); }
  void RestoreHolder(std::optional<RequestId> holder) { hold_.SetHolder(holder); }

 private:
  void BuildViews(const PlanSteps& steps);
  // What admission says of the views and the window. REQUIRES: it is active.
  KvOutlook LookAtKv(const PlanSteps& steps);
  Outlook BuildOutlook(const PlanSteps& steps);
  // Never fewer requests than there are free slots, or slots would stay empty, but no more than this group's
  // share. After BuildViews.
  absl::Span<WaitingView> Window() {
    return pool_->Window(std::min(share_, std::max(options_.window, free_slots_)));
  }
  // What the policy is asked about prompts, or null. After all that is placed before it is asked.
  const PrefillView* LookAtPrompts(const PlanSteps& steps, bool barrier, int64_t reported_step);
  // Asks for a level alone: nobody waits.
  std::optional<Answer> AskForLevel(const PlanSteps& steps, int64_t reported_step, Plan& plan);
  // Carries out what no policy decides on, and says how many requests that concerned: those that run alone,
  // and the one that held a worker. `kv` has the capacity without them then.
  int64_t PlaceAhead(const PlanSteps& steps, const KvOutlook& kv, Plan& plan);
  // The worker for a request that runs alone: of those it fits the one with fewest requests; or kNoWorker.
  WorkerIndex Emptiest(const WaitingView& request) const;
  void DiscardViolations(const Snapshot& snapshot);

  const SchedulerOptions options_;
  RequestPool* const pool_;
  GroupAccounts* const accounts_;
  SchedulerTotals* const totals_;
  std::unique_ptr<Policy> policy_;
  OutlookBuilder outlook_;
  KvGate gate_;
  KvHold hold_;
  // Over all workers, in `views_`.
  int64_t free_slots_ = 0;
  int64_t slots_elsewhere_ = 0;
  // Requests from the front of the pool that this decision may see (RequestPool::TakeShare).
  int64_t share_ = 0;
  // Scratch, kept to avoid allocation per step.
  Decision decision_;
  std::vector<WorkerView> views_;
  std::vector<char> taken_;
  std::vector<KvGate::Worker> kv_workers_;
  // By worker.
  std::vector<std::vector<int64_t>> prompt_steps_;
  PrefillView prefill_;
  // Of `views_`, less what has been placed or held.
  FreeCapacity free_;
};

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_SCHEDULER_DECISION_MAKER_H_
