#include "router/core/decide/scheduler.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace bfio::core {

Scheduler::Scheduler(const SchedulerOptions& options, std::unique_ptr<Policy> policy)
    : options_(options), policy_(std::move(policy)) {}

// --- the waiting pool ---

absl::Status Scheduler::Enqueue(const RequestSpec& request) {
  if (pool_.Contains(request.id) || placed_.contains(request.id)) {
    return absl::AlreadyExistsError(absl::StrCat("request ", request.id, " is known already"));
  }
  if (pool_.size() >= options_.max_waiting) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the waiting pool is full (", options_.max_waiting, " requests)"));
  }
  pool_.Add(request, ClockAt(planned_step_ + 1));
  return absl::OkStatus();
}

void Scheduler::Requeue(const RequestSpec& request) {
  pool_.AddFront(request, ClockAt(planned_step_ + 1));
}

Scheduler::CancelOutcome Scheduler::Cancel(RequestId id) {
  if (pool_.Remove(id)) return CancelOutcome::kDequeued;
  const auto it = placed_.find(id);
  if (it == placed_.end()) return CancelOutcome::kUnknown;
  if (!it->second.dropped) {
    it->second.dropped = true;
    workers_[it->second.worker].drops.push_back(id);
  }
  return CancelOutcome::kDropped;
}

// --- membership ---

std::vector<RequestId> Scheduler::OpenEpoch(std::vector<EpochMember> members) {
  std::vector<Worker> next(members.size());
  absl::flat_hash_map<RequestId, Placed> kept;
  for (size_t g = 0; g < members.size(); ++g) {
    Worker& worker = next[g];
    worker.spec = members[g].spec;
    for (const ResidentRequest& resident : members[g].resident) {
      if (kept.contains(resident.id)) continue;  // named twice
      const auto it = placed_.find(resident.id);
      if (it == placed_.end()) {  // nobody waits for it any more, or it has been placed anew meanwhile
        worker.drops.push_back(resident.id);
        continue;
      }
      Placed placed = it->second;
      // Its load in the next step of its old worker becomes its load in step 1. One whose plan was never
      // acknowledged starts over at s; the first report corrects the account if it had started.
      placed.first_step =
          placed.where == Where::kActive ? placed.first_step - workers_[placed.worker].last_step : 1;
      placed.where = Where::kActive;
      placed.worker = static_cast<WorkerIndex>(g);
      if (placed.dropped) worker.drops.push_back(resident.id);
      ++worker.active;
      worker.base += placed.spec.prefill_tokens - placed.first_step;
      worker.reserved_kv += placed.spec.kv_reserve_tokens();
      kept.emplace(resident.id, placed);
      placed_.erase(it);
    }
  }
  std::vector<RequestId> displaced;
  for (const auto& [id, placed] : placed_) {
    if (!placed.dropped) displaced.push_back(id);
  }
  std::sort(displaced.begin(), displaced.end());  // the map's order is not deterministic
  placed_ = std::move(kept);
  workers_ = std::move(next);
  epoch_base_ += planned_step_;
  planned_step_ = reported_step_ = 0;
  arrived_ = 0;
  open_ = !workers_.empty();
  return displaced;
}

void Scheduler::CloseEpoch() {
  open_ = false;
}

void Scheduler::SetAcceptsNew(WorkerIndex worker, bool accepts_new) {
  if (worker >= 0 && worker < num_workers()) workers_[worker].spec.accepts_new = accepts_new;
}

// --- steps ---

absl::Status Scheduler::OnReport(WorkerIndex index, const StepReport& report) {
  if (index < 0 || index >= num_workers()) {
    return absl::InvalidArgumentError(absl::StrCat("report of unknown rank ", index));
  }
  Worker& worker = workers_[index];
  if (report.step != worker.last_step + 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", index, " reports step ", report.step, " after step ", worker.last_step));
  }
  if (report.applied_plan < 0 || report.applied_plan > planned_step_ || report.load_tokens < 0) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", index, " reports applied_plan ",
                                                   report.applied_plan, " (planned: ", planned_step_,
                                                   "), load ", report.load_tokens));
  }
  Acknowledge(index, report);
  for (const RequestId id : report.rejected) {
    const auto it = FindOn(index, id);
    if (it == placed_.end()) continue;
    const Placed placed = it->second;
    Remove(it);
    if (!placed.dropped) pool_.AddFront(placed.spec, placed.enqueued_step);
  }
  const int64_t own = worker.base + worker.active * report.step;
  totals_.drift_tokens += std::abs(report.load_tokens - own);
  worker.base += report.load_tokens - own;
  for (const RequestId id : report.finished) {
    const auto it = FindOn(index, id);
    if (it != placed_.end()) Remove(it);
  }
  if (worker.active == 0) worker.base = 0;  // what drift was adopted left with the requests
  worker.last_step = report.step;
  worker.idle = report.group_idle;
  if (report.step == reported_step_ + 1 && ++arrived_ == num_workers()) AdvanceReportedStep();
  return absl::OkStatus();
}

void Scheduler::AdvanceReportedStep() {
  // A rank may be ahead: its peers' reports of an earlier step can arrive after its own of a later one.
  do {
    ++reported_step_;
    arrived_ = static_cast<int32_t>(std::count_if(
        workers_.begin(), workers_.end(), [&](const Worker& w) { return w.last_step > reported_step_; }));
  } while (arrived_ == num_workers());
}

void Scheduler::Acknowledge(WorkerIndex index, const StepReport& report) {
  Worker& worker = workers_[index];
  size_t done = 0;
  int64_t late = 0;
  for (; done < worker.inflight.size() && worker.inflight[done].apply_step <= report.applied_plan; ++done) {
    const Inflight& entry = worker.inflight[done];
    if (entry.apply_step < report.step) late = 1;
    const auto it = placed_.find(entry.id);
    if (it == placed_.end() || it->second.worker != index) continue;
    if (entry.drop) {
      // Not `dropped`: the id was requeued and placed here again after the worker's stale copy was ordered
      // dropped.
      if (it->second.dropped) Remove(it);
      continue;
    }
    Placed& placed = it->second;
    // Not this placement: it was refused before its plan was acknowledged, and has been placed here anew.
    if (placed.where != Where::kInflight || placed.first_step != entry.apply_step) continue;
    --worker.inflight_placements;
    worker.inflight_base -= placed.spec.prefill_tokens - placed.first_step;
    placed.where = Where::kActive;
    placed.first_step = report.step;
    ++worker.active;
    worker.base += placed.spec.prefill_tokens - placed.first_step;
  }
  worker.inflight.erase(worker.inflight.begin(), worker.inflight.begin() + static_cast<int64_t>(done));
  totals_.late_plans += late;
}

Scheduler::PlacedIterator Scheduler::FindOn(WorkerIndex worker, RequestId id) {
  const auto it = placed_.find(id);
  if (it != placed_.end() && it->second.worker == worker) return it;
  ++totals_.unknown_ids;
  return placed_.end();
}

void Scheduler::Remove(PlacedIterator it) {
  const Placed& placed = it->second;
  Worker& worker = workers_[placed.worker];
  const int64_t base = placed.spec.prefill_tokens - placed.first_step;
  if (placed.where == Where::kActive) {
    --worker.active;
    worker.base -= base;
  } else {
    --worker.inflight_placements;
    worker.inflight_base -= base;
  }
  worker.reserved_kv -= placed.spec.kv_reserve_tokens();
  // Entries of `inflight` and `drops` that name it are harmless: whoever reads them looks the id up first.
  placed_.erase(it);
}

bool Scheduler::GroupIdle() const {
  return open_ && std::all_of(workers_.begin(), workers_.end(),
                              [&](const Worker& w) { return w.idle && w.last_step == reported_step_; });
}

int64_t Scheduler::TargetStep(bool force) const {
  const bool ahead = options_.plan_mode == PlanMode::kPipelined && !GroupIdle();
  return reported_step_ + (ahead ? 2 : 1) + (force ? 1 : 0);
}

bool Scheduler::HasDrops() const {
  return std::any_of(workers_.begin(), workers_.end(), [](const Worker& w) { return !w.drops.empty(); });
}

std::optional<Plan> Scheduler::MakePlan(bool force) {
  if (!open_) return std::nullopt;
  const int64_t target = TargetStep(force);
  if (target <= planned_step_) return std::nullopt;
  const bool idle = GroupIdle();
  // Residents of a new epoch's members count too: such a group waits for its first plan, but is not out of
  // work.
  if (idle && pool_.empty() && placed_.empty() && !HasDrops()) return std::nullopt;

  assignments_.clear();
  if (!pool_.empty()) {
    BuildViews(target);
    Snapshot snapshot;
    snapshot.step = ClockAt(target);
    snapshot.workers = views_;
    snapshot.waiting = pool_.views().subspan(0, static_cast<size_t>(options_.window));
    policy_->Decide(snapshot, assignments_);
    DiscardViolations();
  }
  // Waiting requests that fit nowhere must not make an idle group spin through empty steps.
  if (idle && assignments_.empty() && placed_.empty() && !HasDrops()) return std::nullopt;

  Plan plan;
  plan.apply_step = target;
  plan.placements.reserve(assignments_.size());
  for (const Assignment& assignment : assignments_) Place(assignment, target, plan);
  pool_.RemoveMany(assignments_);
  SendDrops(target, plan);
  planned_step_ = target;
  ++totals_.plans;
  return plan;
}

void Scheduler::BuildViews(int64_t step) {
  views_.resize(workers_.size());
  for (size_t g = 0; g < workers_.size(); ++g) {
    const Worker& w = workers_[g];
    WorkerView& view = views_[g];
    view.active = w.active + w.inflight_placements;
    view.load_tokens = std::max<int64_t>(0, w.base + w.inflight_base + view.active * step);
    view.free_slots = w.spec.accepts_new ? std::max(0, w.spec.slots - view.active) : 0;
    view.free_kv_tokens = std::max<int64_t>(0, w.spec.kv_tokens - w.reserved_kv);
  }
}

void Scheduler::DiscardViolations() {
  // A plan that over-fills a worker or names a request twice would corrupt the accounts of everybody.
  taken_.assign(static_cast<size_t>(pool_.size()), 0);
  const auto bad = [&](const Assignment& a) {
    if (a.waiting_index < 0 || a.waiting_index >= pool_.size() || taken_[a.waiting_index]) return true;
    if (a.worker < 0 || a.worker >= num_workers()) return true;
    WorkerView& view = views_[a.worker];
    const int64_t kv = pool_.views()[a.waiting_index].kv_reserve_tokens;
    if (view.free_slots < 1 || view.free_kv_tokens < kv) return true;
    --view.free_slots;
    view.free_kv_tokens -= kv;
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
  Placed& placed = placed_[waiting.id];
  placed.spec = pool_.Spec(waiting.id);
  placed.worker = assignment.worker;
  placed.where = Where::kInflight;
  placed.first_step = step;
  placed.enqueued_step = waiting.enqueued_step;
  worker.inflight.push_back({step, waiting.id, false});
  ++worker.inflight_placements;
  worker.inflight_base += waiting.prefill_tokens - step;
  worker.reserved_kv += waiting.kv_reserve_tokens;
  plan.placements.push_back({waiting.id, assignment.worker, ClockAt(step) - waiting.enqueued_step});
}

void Scheduler::SendDrops(int64_t step, Plan& plan) {
  for (size_t g = 0; g < workers_.size(); ++g) {
    for (const RequestId id : workers_[g].drops) {
      plan.drops.push_back({id, static_cast<WorkerIndex>(g)});
      workers_[g].inflight.push_back({step, id, true});
    }
    workers_[g].drops.clear();
  }
}

// --- views ---

Scheduler::WorkerAccount Scheduler::Account(WorkerIndex index) const {
  const Worker& w = workers_[index];
  WorkerAccount account;
  account.spec = w.spec;
  account.active = w.active;
  account.inflight = w.inflight_placements;
  account.load_tokens = w.base + w.active * (w.last_step + 1);
  account.reserved_kv_tokens = w.reserved_kv;
  account.last_step = w.last_step;
  return account;
}

std::optional<WorkerIndex> Scheduler::WorkerOf(RequestId id) const {
  const auto it = placed_.find(id);
  if (it == placed_.end()) return std::nullopt;
  return it->second.worker;
}

bool Scheduler::Parked() const {
  return GroupIdle() && TargetStep(false) > planned_step_;
}

}  // namespace bfio::core
