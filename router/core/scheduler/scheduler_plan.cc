#include "router/core/scheduler/scheduler.h"

#include <algorithm>
#include <utility>

#include "router/core/policy/room.h"

namespace bfio::core {

// --- decisions ---

bool Scheduler::GroupIdle() const {
  return open_ && std::all_of(workers_.begin(), workers_.end(), [&](const Worker& w) {
           return options_.coupled ? w.idle && w.last_step == reported_step_ : AwaitsPlan(w);
         });
}

int64_t Scheduler::TargetOf(const Worker& worker, int64_t step) const {
  return options_.coupled ? step : worker.last_step + (AwaitsPlan(worker) ? 1 : 2);
}

int64_t Scheduler::NumberOf(const Worker& worker, int64_t step) const {
  const int64_t target = TargetOf(worker, step);
  return options_.coupled ? target : std::max(target, worker.planned_step + 1);
}

int64_t Scheduler::TargetStep(bool force) const {
  const bool ahead = options_.plan_mode == PlanMode::kPipelined && !GroupIdle();
  return reported_step_ + (ahead ? 2 : 1) + options_.report_delay_steps + (force ? 1 : 0);
}

bool Scheduler::HasDrops() const {
  return std::any_of(workers_.begin(), workers_.end(), [](const Worker& w) { return !w.drops.empty(); });
}

std::optional<Plan> Scheduler::MakePlan(bool force) {
  if (!open_) return std::nullopt;
  if (!options_.coupled) return PlanUncoupled();
  const int64_t target = TargetStep(force);
  if (target <= planned_step_) return std::nullopt;
  const bool idle = GroupIdle();
  TakeBatches(target, idle && placed_.empty());
  // Residents of a new epoch's members count too: such a group waits for its first plan, but is not out of
  // work.
  if (idle && pool_.empty() && placed_.empty() && !HasDrops()) return std::nullopt;

  Plan plan;
  plan.apply_step = target;
  const bool stopped_early = AskPolicy(target, plan);
  // Waiting requests that fit nowhere must not make an idle group spin through empty steps.
  if (idle && assignments_.empty() && placed_.empty() && !HasDrops()) return std::nullopt;

  plan.stopped_early = stopped_early;
  PlaceAll(target, plan);
  SendDrops(target, plan);
  plan.prefill_piece = piece_ = ChoosePiece(target, plan);
  planned_step_ = target;
  ++totals_.plans;
  return plan;
}

std::optional<Plan> Scheduler::PlanUncoupled() {
  Plan plan;
  plan.apply_step = reported_step_ + 1;
  // Batches are those of a common step; without one nobody waits for them.
  TakeBatches(plan.apply_step, true);
  plan.stopped_early = AskPolicy(plan.apply_step, plan);
  PlaceAll(plan.apply_step, plan);
  plan.apply_steps.assign(workers_.size(), 0);
  for (const Placement& placement : plan.placements) plan.apply_steps[placement.worker] = 1;
  bool any = false;
  for (size_t g = 0; g < workers_.size(); ++g) {
    const bool due = plan.apply_steps[g] > 0 || !workers_[g].drops.empty() || HeldUp(workers_[g]);
    plan.apply_steps[g] = due ? NumberOf(workers_[g], 0) : 0;
    any |= due;
  }
  if (!any) return std::nullopt;
  SendDrops(plan.apply_step, plan);
  for (size_t g = 0; g < workers_.size(); ++g) {
    workers_[g].planned_step = std::max(workers_[g].planned_step, plan.apply_steps[g]);
  }
  ++totals_.plans;
  return plan;
}

bool Scheduler::AskPolicy(int64_t step, Plan& plan) {
  assignments_.clear();
  if (pool_.empty()) {
    holder_.reset();
    return false;
  }
  BuildViews(step);
  // Coupled workers are decided upon once a step; here it is at every event.
  if (!options_.coupled && free_slots_ == 0) return false;
  auto seen = static_cast<int64_t>(Window().size());
  KvOutlook kv;
  if (gate_.active()) kv = LookAtKv(step);
  // The place that a holder leaves in the window stays empty: nobody has looked at who would take it.
  if (holder_ && ServeHolder(step, kv, plan)) --seen;
  if (pool_.empty()) return false;
  FillTenantExcess();
  Snapshot snapshot;
  snapshot.step = ClockAt(step);
  snapshot.workers = views_;
  snapshot.waiting = Window().subspan(0, static_cast<size_t>(seen));
  snapshot.pool_size = pool_.size();
  snapshot.outlook = BuildOutlook(step);
  snapshot.hold_after_steps = options_.hold_after_steps;
  snapshot.kv = kv;
  if (gate_.active() && !holder_) {
    kv_room_.Reset(snapshot.kv);
    if (const WaitingView* const overdue = OverdueRequest(snapshot, kv_room_)) holder_ = overdue->id;
  }
  decided_step_ = step;
  ++totals_.policy_calls;
  policy_->Decide(snapshot, assignments_);
  plan.gap = policy_->gap();
  DiscardViolations(snapshot);
  return policy_->stopped_early();
}

void Scheduler::TakeBatches(int64_t step, bool idle) {
  released_.clear();
  if (wait_.active()) wait_.Release(ClockAt(step), idle, released_);
  for (const WaitGate::Waiting& waiting : released_) {
    pool_.Add(waiting.spec, waiting.enqueued_step);
    totals_.held_back += waiting.enqueued_step < ClockAt(step) ? 1 : 0;
  }
}

void Scheduler::BuildViews(int64_t step) {
  views_.resize(workers_.size());
  free_slots_ = 0;
  for (size_t g = 0; g < workers_.size(); ++g) {
    const Worker& w = workers_[g];
    WorkerView& view = views_[g];
    view.active = w.active + w.inflight_placements;
    const int64_t target = TargetOf(w, step);
    view.load_tokens = std::max<int64_t>(0, w.base + w.inflight_base + view.active * target);
    view.free_slots = w.spec.accepts_new ? std::max(0, w.spec.slots - view.active) : 0;
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
      view.time_offset += view.prefill_weight * static_cast<double>(PendingPrefill(w, target, 0));
    }
  }
}

int64_t Scheduler::PendingPrefill(const Worker& worker, int64_t step, int64_t fresh) const {
  return fresh + PendingAhead(*worker.prefill,
                              {worker.active + worker.inflight_placements, worker.inflight_prefill - fresh,
                               std::max<int64_t>(0, step - worker.last_step - 1), piece_});
}

std::optional<int64_t> Scheduler::ChoosePiece(int64_t step, const Plan& plan) {
  if (!options_.prefill.pieces) return std::nullopt;
  pending_.assign(workers_.size(), 0);
  for (const Placement& placement : plan.placements)
    pending_[placement.worker] += placed_.at(placement.id).spec.prefill_tokens;
  for (size_t g = 0; g < workers_.size(); ++g) {
    if (!workers_[g].prefill) return std::nullopt;
    pending_[g] = PendingPrefill(workers_[g], step, pending_[g]);
  }
  return EqualPiece(pending_);
}

void Scheduler::PlaceAll(int64_t step, Plan& plan) {
  for (const Assignment& assignment : assignments_) Place(assignment, step, plan);
  for (const Assignment& assignment : assignments_)
    service_.OnLeft(pool_.views()[static_cast<size_t>(assignment.waiting_index)].tenant);
  pool_.RemoveMany(assignments_);
}

// The policy would see an ordinary candidate again, and might prefer others to it for ever.
bool Scheduler::ServeHolder(int64_t step, const KvOutlook& kv, Plan& plan) {
  const absl::Span<const WaitingView> waiting = Window();
  const auto it = std::find_if(waiting.begin(), waiting.end(),
                               [&](const WaitingView& request) { return request.id == *holder_; });
  if (it == waiting.end()) {  // cancelled, or pushed out of sight
    holder_.reset();
    return false;
  }
  kv_room_.Reset(kv);
  WorkerIndex best = -1;
  for (WorkerIndex g = 0; g < num_workers(); ++g) {
    if (FitsNow(*it, g) && (best < 0 || views_[g].free_kv_tokens > views_[best].free_kv_tokens)) best = g;
  }
  if (best < 0) return false;
  holder_.reset();
  gate_.Take(it->kv_need, best);
  assignments_.push_back({static_cast<int32_t>(it - waiting.begin()), best});
  PlaceAll(step, plan);
  assignments_.clear();
  BuildViews(step);
  return true;
}

bool Scheduler::FitsNow(const WaitingView& request, WorkerIndex worker) const {
  const WorkerView& view = views_[worker];
  return view.free_slots > 0 &&
         (request.kv_reserve_tokens <= view.free_kv_tokens || kv_room_.Fits(request.kv_need, worker));
}

KvOutlook Scheduler::LookAtKv(int64_t step) {
  kv_workers_.clear();
  for (WorkerIndex g = 0; g < num_workers(); ++g) {
    const Worker& w = workers_[g];
    kv_workers_.push_back({residents_.Of(g),
                           {w.last_step, TargetOf(w, step)},
                           w.spec.kv_tokens,
                           views_[g].load_tokens,
                           w.drift,
                           views_[g].free_slots > 0});
  }
  return gate_.Look(*lookahead_, kv_workers_, Window());
}

void Scheduler::FillTenantExcess() {
  if (service_.tenants() <= 1) return;  // 0 for the only one
  const double least = service_.LeastWaiting();
  uint32_t tenant = 0;
  double excess = std::max(0.0, service_.Served(tenant) - least);
  for (WaitingView& view : Window()) {
    if (view.tenant != tenant) {
      tenant = view.tenant;
      excess = std::max(0.0, service_.Served(tenant) - least);
    }
    view.tenant_excess_tokens = excess;
  }
}

Outlook Scheduler::BuildOutlook(int64_t step) {
  const int32_t horizon = std::min(policy_->horizon(), kMaxHorizonSteps);
  if (horizon <= 0 || !lookahead_->predicts()) {
    if (std::exchange(curves_set_, false)) {
      for (WaitingView& view : pool_.mutable_views()) view.curve = 0;
    }
    return {};
  }
  curves_set_ = true;
  outlook_.Begin(horizon, num_workers());
  for (WorkerIndex g = 0; g < num_workers(); ++g) {
    const Worker& w = workers_[g];
    const double load = static_cast<double>(views_[g].load_tokens),
                 known = load - static_cast<double>(w.drift);
    const double scale = w.drift == 0 || known <= 0 ? 1 : load / known;
    outlook_.AddWorker(*lookahead_, g, residents_.Of(g), {w.last_step, TargetOf(w, step)}, scale);
  }
  outlook_.AddWaiting(*lookahead_, Window());
  return outlook_.View();
}

void Scheduler::DiscardViolations(const Snapshot& snapshot) {
  // A plan that over-fills a worker or names a request twice would corrupt the accounts of everybody.
  taken_.assign(static_cast<size_t>(pool_.size()), 0);
  kv_room_.Reset(snapshot.kv);
  const auto bad = [&](const Assignment& a) {
    const auto seen = static_cast<int64_t>(snapshot.waiting.size());
    if (a.waiting_index < 0 || a.waiting_index >= seen || taken_[a.waiting_index]) return true;
    if (a.worker < 0 || a.worker >= num_workers()) return true;
    WorkerView& view = views_[a.worker];
    const WaitingView& request = pool_.views()[a.waiting_index];
    const int64_t kv = request.kv_reserve_tokens;
    if (view.free_slots < 1) return true;
    if (view.free_kv_tokens < kv && !kv_room_.Fits(request.kv_need, a.worker)) return true;
    --view.free_slots;
    view.free_kv_tokens -= kv;
    kv_room_.Put(request.kv_need, a.worker, +1);
    taken_[a.waiting_index] = 1;
    return false;
  };
  const auto end = std::remove_if(assignments_.begin(), assignments_.end(), bad);
  totals_.policy_violations += assignments_.end() - end;
  assignments_.erase(end, assignments_.end());
}

void Scheduler::Place(const Assignment& assignment, int64_t step, Plan& plan) {
  const WaitingView& waiting = pool_.views()[static_cast<size_t>(assignment.waiting_index)];
  Worker& worker = workers_[assignment.worker];
  const int64_t first_step = TargetOf(worker, step);
  Placed& placed = placed_[waiting.id];
  placed.spec = pool_.Spec(waiting.id);
  placed.worker = assignment.worker;
  placed.where = Where::kInflight;
  placed.first_step = first_step;
  placed.plan = NumberOf(worker, step);
  placed.enqueued_step = waiting.enqueued_step;
  placed.index =
      residents_.Add(assignment.worker, placed.spec, first_step, true, placed.spec.generated_tokens);
  // A prompt that is computed again because a worker was lost, or ran out, is not the tenant's to pay.
  if (PaysPrompt(placed.spec)) service_.ChargePrompt(placed.spec.tenant, placed.spec.prefill_tokens);
  worker.inflight.push_back({placed.plan, waiting.id, false});
  ++worker.inflight_placements;
  worker.inflight_base += waiting.prefill_tokens - first_step;
  worker.inflight_prefill += waiting.prefill_tokens;
  worker.reserved_kv += waiting.kv_reserve_tokens;
  plan.placements.push_back({waiting.id, assignment.worker, ClockAt(step) - waiting.enqueued_step});
}

void Scheduler::SendDrops(int64_t step, Plan& plan) {
  for (size_t g = 0; g < workers_.size(); ++g) {
    for (const RequestId id : workers_[g].drops) {
      plan.drops.push_back({id, static_cast<WorkerIndex>(g)});
      workers_[g].inflight.push_back({NumberOf(workers_[g], step), id, true});
    }
    workers_[g].drops.clear();
  }
}

}  // namespace bfio::core
