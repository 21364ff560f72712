// Decides for one group, in stages over one FreeCapacity: those that PlaceAhead lists (stages.h), then
// admission and the policy (docs/design/decision.md, "The order"). Builds the policy's snapshot from accounts
// and pool, enforces its contract, and converts its decision to placements. Borrows accounts and pool.
// Threads: one.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"
#include "router/core/admission/kv_admission.h"
#include "router/core/choice/rule_chooser.h"
#include "router/core/lookahead/far_outlook.h"
#include "router/core/lookahead/lookahead.h"
#include "router/core/model/free_capacity.h"
#include "router/core/model/snapshot.h"
#include "router/core/policy/policy.h"
#include "router/core/prefill/prefill_view.h"
#include "router/core/prefix/prefix_view.h"
#include "router/core/scheduler/group_accounts.h"
#include "router/core/scheduler/request_pool.h"
#include "router/core/scheduler/scheduler_options.h"
#include "router/core/scheduler/scheduler_totals.h"
#include "router/core/scheduler/stages.h"

namespace bfio::core {

// Fills Snapshot::outlook. Gets from the lookahead a row per worker and one curve per kind of waiting
// request. Keeps the arrays between plans; the spans that it returns are valid until the next Build. Owned by
// the scheduler. Threads: the scheduler's.
class OutlookBuilder {
 public:
  // Begins an outlook of `workers` workers. REQUIRES: 1 <= horizon <= kMaxHorizonSteps.
  void Begin(int32_t horizon, int32_t workers);
  // `load_scale` is the factor of the loads: above 1 where the worker reports more than its requests account
  // for.
  void AddWorker(Lookahead& lookahead, WorkerIndex worker, absl::Span<const Resident> residents,
                 const PlanTime& time, double load_scale);
  // Writes WaitingView::curve.
  void AddWaiting(Lookahead& lookahead, absl::Span<WaitingView> waiting);
  Outlook View() const { return {horizon_, load_, curves_}; }

 private:
  size_t columns() const { return static_cast<size_t>(horizon_) + 1; }

  int32_t horizon_ = 0;
  std::vector<double> load_;
  std::vector<double> curves_;
  absl::flat_hash_map<uint64_t, int32_t> rows_;
};

class DecisionMaker {
 public:
  // The result of a call of the policy.
  struct Answer {
    bool stopped_early = false;
    // The rule of placement that the policy had to follow, where it has any.
    std::optional<PlacementRule> rule = std::nullopt;
  };

  // `pool`, `accounts` and `totals` are borrowed and outlive this.
  DecisionMaker(GroupKind kind, const SchedulerOptions& options, RequestPool* pool, GroupAccounts* accounts,
                SchedulerTotals* totals, std::unique_ptr<Policy> policy)
      : kind_(kind),
        options_(options),
        pool_(pool),
        accounts_(accounts),
        totals_(totals),
        policy_(std::move(policy)),
        admission_(options.admission) {
    SetRules();
  }

  // Decides about the waiting requests and, for ranks in a barrier, the level up to which they compute
  // prompts; empty when the policy was not called. With a barrier the policy is called once per step, even
  // where no slot is free, because it learns from each call. Requests that are placed before the policy is
  // called enter the plan at once, all others with PlaceAll.
  std::optional<Answer> Decide(const PlanSteps& steps, Plan& plan);
  // Free slots in other groups; these groups take their share of the waiting requests.
  void SetSlotsElsewhere(int64_t slots) { slots_elsewhere_ = slots; }
  // The next decisions place no more requests, and prompt tokens, than this.
  void SetRoom(const Room& room) { room_ = room; }
  // The decision places no request beyond those already in the plan.
  bool empty() const { return decision_.assignments.empty(); }
  // Executes the decision.
  void PlaceAll(const PlanSteps& steps, Plan& plan);

  void SetPolicy(std::unique_ptr<Policy> policy) {
    policy_ = std::move(policy);
    SetRules();
  }
  // Follows this rule, and chooses none itself until SetPolicy.
  void ObeyRule(PlacementRule rule) { chooser_.Obey(rule); }
  // The placement rule that is followed, and the measured step times of all.
  const RuleChooser& chooser() const { return chooser_; }
  const Policy& policy() const { return *policy_; }

 private:
  void BuildViews(const PlanSteps& steps);
  // How many of the first `window` requests of the pool other groups have room for.
  int64_t FirstInRoom(int64_t window);
  // Executes the stages that precede the policy on the first `window` requests of the pool. Returns how many
  // of these they leave. Afterwards `free_` has the remaining capacity. Call after BuildViews.
  int64_t PlaceAhead(const PlanSteps& steps, int64_t window, Plan& plan);
  // Calls the policy with the first `window` requests, of those that admission lets begin; where the pool has
  // no `placeable` requests, for a level only. Call after `free_` is set.
  std::optional<Answer> AskPolicy(const PlanSteps& steps, int64_t window, bool placeable, Plan& plan);
  // Enters the assignments of `requests` in accounts and plan.
  void Enter(absl::Span<const WaitingView> requests, const PlanSteps& steps, Plan& plan);
  // Admission's outlook for the views, the window and `held_`. REQUIRES: it is active.
  KvOutlook ReadKv(const PlanSteps& steps, absl::Span<WaitingView> window);
  // The waiting requests that admission lets begin now; the policy gets only these.
  absl::Span<const WaitingView> ShowChosen(const PlanSteps& steps, absl::Span<const WaitingView> waiting);
  Outlook BuildOutlook(const PlanSteps& steps, absl::Span<WaitingView> waiting);
  // Ratio of a worker's load to the sum over its residents; differs from 1 by the drift.
  double LoadScale(WorkerIndex worker) const;
  // Sets the candidates: the horizon rule only with a lookahead that predicts.
  void SetRules();
  // Sets the snapshot's rule, and its far outlook if that rule needs it.
  void FollowRule(const PlanSteps& steps, Snapshot& snapshot);
  // Replays the steps since the last replay, with their placements spread evenly; `placed` of them are of the
  // present decision. During a step, and while slots are short, placements are only counted, so that the
  // simulated groups have the group's mean rate of requests.
  void ReplayRules(const PlanSteps& steps, int64_t placed);
  // Mean number of tokens that residents will have generated by the plan's step.
  double MeanAge(const PlanSteps& steps) const;
  // The policy's input about prompts, or null. Call after the placements that precede the policy.
  const PrefillView* ReadPrompts(const PlanSteps& steps);

  const GroupKind kind_;
  const SchedulerOptions options_;
  RequestPool* const pool_;
  GroupAccounts* const accounts_;
  SchedulerTotals* const totals_;
  std::unique_ptr<Policy> policy_;
  OutlookBuilder outlook_;
  FarOutlookBuilder far_;
  RuleChooser chooser_;
  // The step up to which rules have been replayed, and the number of requests placed since.
  int64_t replayed_step_ = 0;
  int64_t placed_since_ = 0;
  // More requests waited than there were slots at the present decision, so no rule was followed.
  bool slots_short_ = false;
  // The step of the last mean age, and its value.
  int64_t aged_step_ = 0;
  double mean_age_ = 0;
  KvAdmission admission_;
  KvHold hold_;
  int64_t slots_elsewhere_ = 0;
  Room room_;
  // Scratch, kept to avoid allocation per step.
  Decision decision_;
  std::vector<WorkerView> views_;
  std::vector<WaitingView> held_, looked_at_;
  std::vector<KvAdmission::Worker> kv_workers_;
  // By worker.
  std::vector<std::vector<int64_t>> prompt_steps_;
  std::vector<KvChanges> kv_changes_;
  // Indices of waiting requests, and their views.
  std::vector<int32_t> chosen_;
  std::vector<WaitingView> chosen_views_;
  PrefillView prefill_;
  PrefixView prefixes_;
  // The capacity that the stages so far have left.
  FreeCapacity free_;
};

}  // namespace bfio::core
