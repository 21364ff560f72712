#include "router/core/scheduler/decision_maker.h"

#include <algorithm>

#include "router/core/policy/place_in_order.h"
#include "router/core/scheduler/prefill_forecast.h"

namespace bfio::core {

std::optional<DecisionMaker::Answer> DecisionMaker::Ask(const PlanSteps& steps, bool barrier,
                                                        int64_t reported_step, Plan& plan) {
  decision_.Clear();
  if (pool_->placeable() == 0) {
    hold_.SetHolder(std::nullopt);
    return barrier ? AskForLevel(steps, reported_step, plan) : std::nullopt;
  }
  BuildViews(steps);
  if (!barrier && free_slots_ == 0) return std::nullopt;
  share_ = pool_->TakeShare(free_slots_, slots_elsewhere_);
  auto seen = static_cast<int64_t>(Window().size());
  KvOutlook kv;
  if (gate_.active()) kv = LookAtKv(steps);
  // The window is shorter without them: admission has not looked at the requests behind it.
  seen -= PlaceAhead(steps, kv, plan);
  if (pool_->placeable() == 0) return barrier ? AskForLevel(steps, reported_step, plan) : std::nullopt;
  pool_->FillTenantExcess(Window(), free_);
  Snapshot snapshot;
  snapshot.step = steps.clock;
  snapshot.waiting = Window().subspan(0, static_cast<size_t>(seen));
  hold_.Close(snapshot.step, snapshot.waiting, free_);
  free_.LimitSlotsToMemory(snapshot.waiting);
  views_.assign(free_.views().begin(), free_.views().end());
  snapshot.workers = views_;
  snapshot.pool_size = pool_->placeable();
  if (policy_->uses_first_come_waits()) snapshot.first_come_p99 = pool_->first_come_p99();
  snapshot.outlook = BuildOutlook(steps);
  snapshot.kv = kv;
  snapshot.prefill = LookAtPrompts(steps, barrier, reported_step);
  ++totals_->policy_calls;
  policy_->Decide(snapshot, decision_);
  DiscardViolations(snapshot);
  plan.level_s = decision_.level_s;
  return Answer{decision_.stopped_early, decision_.gap};
}

const PrefillView* DecisionMaker::LookAtPrompts(const PlanSteps& steps, bool barrier, int64_t reported_step) {
  if (!barrier || !policy_->meters_prompts()) return nullptr;
  return ForecastPrefill(*accounts_, steps, reported_step, prefill_) ? &prefill_ : nullptr;
}

std::optional<DecisionMaker::Answer> DecisionMaker::AskForLevel(const PlanSteps& steps, int64_t reported_step,
                                                                Plan& plan) {
  if (!accounts_->AnyPrompt()) return std::nullopt;
  Snapshot snapshot;
  snapshot.step = steps.clock;
  snapshot.prefill = LookAtPrompts(steps, true, reported_step);
  if (snapshot.prefill == nullptr) return std::nullopt;
  BuildViews(steps);
  snapshot.workers = views_;
  ++totals_->policy_calls;
  policy_->Decide(snapshot, decision_);
  plan.level_s = decision_.level_s;
  return Answer{decision_.stopped_early, decision_.gap};
}

void DecisionMaker::BuildViews(const PlanSteps& steps) {
  views_.resize(accounts_->workers().size());
  free_slots_ = 0;
  for (size_t g = 0; g < views_.size(); ++g) {
    const GroupAccounts::Worker& w = accounts_->workers()[g];
    WorkerView& view = views_[g];
    view.active = w.placed();
    const int64_t target = steps.targets[g];
    view.load_tokens = std::max<int64_t>(0, w.base + w.inflight_base + view.active * target);
    view.free_slots = w.free_slots();
    free_slots_ += view.free_slots;
    view.free_kv_tokens = w.spec.kv_tokens - w.reserved_kv;
    if (!gate_.active()) view.free_kv_tokens = std::max<int64_t>(0, view.free_kv_tokens);
    view.total_kv_tokens = w.spec.kv_tokens;
    view.accepts_new = w.spec.accepts_new;
    view.time_per_token = w.spec.time_per_token;
    view.time_offset = w.spec.time_offset;
    view.service_time = w.spec.service_time;
    // A prompt is computed in one step, and its request stays for a mean one's: the policy compares by load.
    const double stays = std::max(1.0, accounts_->traffic().output_tokens.value);
    view.prefill_weight = w.prefill ? 0 : w.spec.prefill_time / stays;
  }
}

KvOutlook DecisionMaker::LookAtKv(const PlanSteps& steps) {
  kv_workers_.clear();
  prompt_steps_.resize(accounts_->workers().size());
  for (WorkerIndex g = 0; g < accounts_->num_workers(); ++g) {
    const GroupAccounts::Worker& w = accounts_->worker(g);
    accounts_->PromptSteps(g, prompt_steps_[g]);
    kv_workers_.push_back({accounts_->ResidentsOf(g),
                           {w.last_step, steps.targets[g]},
                           w.spec.kv_tokens,
                           views_[g].load_tokens,
                           w.drift,
                           views_[g].free_slots > 0,
                           prompt_steps_[g]});
  }
  return gate_.Look(pool_->lookahead(), kv_workers_, Window(),
                    [this](int64_t tokens) { return accounts_->StepsOfPrompt(tokens); });
}

Outlook DecisionMaker::BuildOutlook(const PlanSteps& steps) {
  const int32_t horizon = std::min(policy_->horizon(), kMaxHorizonSteps);
  Lookahead& lookahead = pool_->lookahead();
  if (horizon <= 0 || !lookahead.predicts()) {
    pool_->ClearCurves();
    return {};
  }
  pool_->CurvesAreSet();
  outlook_.Begin(horizon, accounts_->num_workers());
  for (WorkerIndex g = 0; g < accounts_->num_workers(); ++g) {
    const GroupAccounts::Worker& w = accounts_->worker(g);
    const double load = static_cast<double>(views_[g].load_tokens),
                 known = load - static_cast<double>(w.drift);
    const double scale = w.drift == 0 || known <= 0 ? 1 : load / known;
    outlook_.AddWorker(lookahead, g, accounts_->ResidentsOf(g), {w.last_step, steps.targets[g]}, scale);
  }
  outlook_.AddWaiting(lookahead, Window());
  return outlook_.View();
}

int64_t DecisionMaker::PlaceAhead(const PlanSteps& steps, const KvOutlook& kv, Plan& plan) {
  free_.Reset(views_, kv);
  const absl::Span<const WaitingView> waiting = Window();
  for (size_t i = 0; i < waiting.size(); ++i) {
    if (!waiting[i].runs_alone) continue;
    const WorkerIndex worker = Emptiest(waiting[i]);
    if (worker == kNoWorker) continue;
    free_.Take(waiting[i], worker);
    free_.LimitSlots(worker, 0);
    decision_.assignments.push_back({static_cast<int32_t>(i), worker});
  }
  if (const auto served = hold_.Serve(waiting, free_)) decision_.assignments.push_back(*served);
  const auto placed = static_cast<int64_t>(decision_.assignments.size());
  if (placed == 0) return 0;
  if (gate_.active()) {
    for (const Assignment& a : decision_.assignments) gate_.Take(waiting[a.waiting_index].kv_need, a.worker);
  }
  PlaceAll(steps, plan);
  decision_.Clear();
  BuildViews(steps);
  free_.Reset(views_, kv);
  return placed;
}

WorkerIndex DecisionMaker::Emptiest(const WaitingView& request) const {
  return LeastKey(free_, request, [](const WorkerView& worker) { return worker.active; });
}

void DecisionMaker::DiscardViolations(const Snapshot& snapshot) {
  // A plan that over-fills a worker or names a request twice would corrupt all accounts.
  taken_.assign(static_cast<size_t>(pool_->placeable()), 0);
  const auto bad = [&](const Assignment& a) {
    const auto seen = static_cast<int64_t>(snapshot.waiting.size());
    if (a.waiting_index < 0 || a.waiting_index >= seen || taken_[a.waiting_index]) return true;
    if (a.worker < 0 || a.worker >= accounts_->num_workers()) return true;
    const WaitingView& request = snapshot.waiting[a.waiting_index];
    if (!free_.Fits(request, a.worker)) return true;
    free_.Take(request, a.worker);
    taken_[a.waiting_index] = 1;
    return false;
  };
  std::vector<Assignment>& assignments = decision_.assignments;
  const auto end = std::remove_if(assignments.begin(), assignments.end(), bad);
  totals_->policy_violations += assignments.end() - end;
  assignments.erase(end, assignments.end());
}

void DecisionMaker::PlaceAll(const PlanSteps& steps, Plan& plan) {
  const absl::Span<const WaitingView> waiting = pool_->views().views();
  for (const Assignment& assignment : decision_.assignments) {
    const WaitingView& request = waiting[static_cast<size_t>(assignment.waiting_index)];
    accounts_->Place(pool_->views().Spec(request.id), request.enqueued_step, assignment.worker, steps);
    plan.placements.push_back({request.id, assignment.worker, steps.clock - request.enqueued_step});
  }
  pool_->Take(decision_.assignments, steps.clock);
}

}  // namespace bfio::core
