#include "router/core/scheduler/decision_maker.h"

#include <algorithm>

#include "router/core/policy/room.h"

namespace bfio::core {

std::optional<DecisionMaker::Answer> DecisionMaker::Ask(const PlanSteps& steps, bool always, Plan& plan) {
  decision_.Clear();
  if (pool_->placeable() == 0) {
    holder_.reset();
    return std::nullopt;
  }
  BuildViews(steps);
  if (!always && free_slots_ == 0) return std::nullopt;
  share_ = pool_->TakeShare(free_slots_, slots_elsewhere_);
  auto seen = static_cast<int64_t>(Window().size());
  KvOutlook kv;
  if (gate_.active()) kv = LookAtKv(steps);
  // The window is one shorter without the holder: admission has not looked at the request behind it.
  if (holder_ && ServeHolder(steps, kv, plan)) --seen;
  if (pool_->placeable() == 0) return std::nullopt;
  pool_->FillTenantExcess(Window());
  Snapshot snapshot;
  snapshot.step = steps.clock;
  snapshot.workers = views_;
  snapshot.waiting = Window().subspan(0, static_cast<size_t>(seen));
  snapshot.pool_size = pool_->placeable();
  snapshot.first_come_p99 = pool_->first_come_p99();
  snapshot.outlook = BuildOutlook(steps);
  snapshot.hold_after_steps = options_.hold_after_steps;
  snapshot.kv = kv;
  if (gate_.active() && !holder_) {
    kv_room_.Reset(snapshot.kv);
    if (const WaitingView* const overdue = OverdueRequest(snapshot, kv_room_)) holder_ = overdue->id;
  }
  ++totals_->policy_calls;
  policy_->Decide(snapshot, decision_);
  DiscardViolations(snapshot);
  if (policy_->uses_first_come_waits()) {
    pool_->OnDecision(snapshot.step, snapshot.waiting, static_cast<int64_t>(decision_.assignments.size()));
  }
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
    view.prefill_weight = w.prefill ? options_.prefill.weight : 0;
    if (view.prefill_weight > 0) {
      const int64_t pending = accounts_->PendingPrefill(static_cast<WorkerIndex>(g), target, 0);
      view.time_offset += view.prefill_weight * static_cast<double>(pending);
    }
  }
}

KvOutlook DecisionMaker::LookAtKv(const PlanSteps& steps) {
  kv_workers_.clear();
  for (WorkerIndex g = 0; g < accounts_->num_workers(); ++g) {
    const GroupAccounts::Worker& w = accounts_->worker(g);
    kv_workers_.push_back({accounts_->ResidentsOf(g),
                           {w.last_step, steps.targets[g]},
                           w.spec.kv_tokens,
                           views_[g].load_tokens,
                           w.drift,
                           views_[g].free_slots > 0});
  }
  return gate_.Look(pool_->lookahead(), kv_workers_, Window());
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

// The policy would see an ordinary candidate again, and might prefer others to it for ever.
bool DecisionMaker::ServeHolder(const PlanSteps& steps, const KvOutlook& kv, Plan& plan) {
  const absl::Span<const WaitingView> waiting = Window();
  const auto it = std::find_if(waiting.begin(), waiting.end(),
                               [&](const WaitingView& request) { return request.id == *holder_; });
  if (it == waiting.end()) {  // cancelled, placed by another group, or pushed out of sight
    holder_.reset();
    return false;
  }
  kv_room_.Reset(kv);
  WorkerIndex best = -1;
  for (WorkerIndex g = 0; g < accounts_->num_workers(); ++g) {
    if (FitsNow(*it, g) && (best < 0 || views_[g].free_kv_tokens > views_[best].free_kv_tokens)) best = g;
  }
  if (best < 0) return false;
  holder_.reset();
  gate_.Take(it->kv_need, best);
  decision_.assignments.push_back({static_cast<int32_t>(it - waiting.begin()), best});
  PlaceAll(steps, plan);
  decision_.Clear();
  BuildViews(steps);
  return true;
}

bool DecisionMaker::FitsNow(const WaitingView& request, WorkerIndex worker) const {
  const WorkerView& view = views_[worker];
  return view.free_slots > 0 &&
         (request.kv_reserve_tokens <= view.free_kv_tokens || kv_room_.Fits(request.kv_need, worker));
}

void DecisionMaker::DiscardViolations(const Snapshot& snapshot) {
  // A plan that over-fills a worker or names a request twice would corrupt the accounts of everybody.
  taken_.assign(static_cast<size_t>(pool_->placeable()), 0);
  kv_room_.Reset(snapshot.kv);
  const auto bad = [&](const Assignment& a) {
    const auto seen = static_cast<int64_t>(snapshot.waiting.size());
    if (a.waiting_index < 0 || a.waiting_index >= seen || taken_[a.waiting_index]) return true;
    if (a.worker < 0 || a.worker >= accounts_->num_workers()) return true;
    WorkerView& view = views_[a.worker];
    const WaitingView& request = snapshot.waiting[a.waiting_index];
    if (!FitsNow(request, a.worker)) return true;
    --view.free_slots;
    view.free_kv_tokens -= request.kv_reserve_tokens;
    kv_room_.Put(request.kv_need, a.worker, +1);
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
  pool_->Take(decision_.assignments);
}

}  // namespace bfio::core
