#include "router/core/scheduler/scheduler.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace bfio::core {

Scheduler::Scheduler(const SchedulerOptions& options, std::unique_ptr<Policy> policy,
                     std::unique_ptr<Lookahead> lookahead)
    : options_(options),
      policy_(std::move(policy)),
      lookahead_(lookahead != nullptr ? std::move(lookahead) : *MakeLookahead("none")),
      residents_(lookahead_.get(), &service_),
      gate_(options.admission),
      wait_(options.wait) {}

// --- the waiting pool ---

absl::Status Scheduler::Enqueue(const RequestSpec& request) {
  if (Knows(request.id)) {
    return absl::AlreadyExistsError(absl::StrCat("request ", request.id, " is known already"));
  }
  if (waiting() >= options_.max_waiting) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the waiting pool is full (", options_.max_waiting, " requests)"));
  }
  // Who has begun (elsewhere, before a restart) waits for nobody.
  if (wait_.active() && request.generated_tokens == 0) {
    wait_.Add(request, NextStep());
  } else {
    pool_.Add(request, NextStep());
  }
  service_.OnWaiting(request.tenant);
  return absl::OkStatus();
}

void Scheduler::Requeue(const RequestSpec& request) {
  pool_.AddFront(request, NextStep() - request.waited_steps.value_or(0));
  service_.OnWaiting(request.tenant);
}

Scheduler::CancelOutcome Scheduler::Cancel(RequestId id) {
  if (Waits(id)) {
    service_.OnLeft((pool_.Contains(id) ? pool_.Spec(id) : wait_.Spec(id)).tenant);
    if (!pool_.Remove(id)) wait_.Remove(id);
    return CancelOutcome::kDequeued;
  }
  const auto it = placed_.find(id);
  if (it == placed_.end()) return CancelOutcome::kUnknown;
  if (!it->second.dropped) {
    it->second.dropped = true;
    workers_[it->second.worker].drops.push_back(id);
    residents_.Drop(it->second.worker, it->second.index);
  }
  return CancelOutcome::kDropped;
}

// --- membership ---

std::vector<RequestId> Scheduler::OpenEpoch(std::vector<EpochMember> members) {
  // What is known of residents is known whatever becomes of them; then everybody is counted anew.
  for (WorkerIndex g = 0; g < num_workers(); ++g) residents_.SettleAll(g, workers_[g].last_step);
  Residents before = std::move(residents_);
  residents_ = Residents(lookahead_.get(), &service_);
  residents_.Reset(members.size());
  std::vector<Worker> next(members.size());
  absl::flat_hash_map<RequestId, Placed> kept;
  for (size_t g = 0; g < members.size(); ++g) {
    Worker& worker = next[g];
    worker.spec = members[g].spec;
    Adopt(static_cast<WorkerIndex>(g), members[g].adopted, worker, kept);
    for (const ResidentRequest& resident : members[g].resident) {
      if (const auto other = kept.find(resident.id); other != kept.end()) {  // named twice, or held twice
        if (other->second.worker != static_cast<WorkerIndex>(g)) worker.drops.push_back(resident.id);
        continue;
      }
      const auto it = placed_.find(resident.id);
      if (it == placed_.end()) {  // nobody waits for it any more, or it has been placed anew meanwhile
        worker.drops.push_back(resident.id);
        continue;
      }
      Placed placed = it->second;
      const int64_t age = before.Age(placed.worker, placed.index, workers_[placed.worker].last_step);
      // Its load in the next step of its old worker becomes its load in step 1. One whose plan was never
      // acknowledged starts over at s; the first report corrects the account if it had started.
      placed.first_step =
          placed.where == Where::kActive ? placed.first_step - workers_[placed.worker].last_step : 1;
      placed.where = Where::kActive;
      placed.worker = static_cast<WorkerIndex>(g);
      placed.index = residents_.Add(placed.worker, placed.spec, placed.first_step, false, age);
      if (placed.dropped) {
        worker.drops.push_back(resident.id);
        residents_.Drop(placed.worker, placed.index);
      }
      ++worker.active;
      worker.base += placed.spec.prefill_tokens - placed.first_step + placed.drift;
      worker.drift += placed.drift;
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
  // The policies' clock does not run backwards: a step may have been decided, or run, that no plan was sent
  // for.
  epoch_base_ += std::max({planned_step_, reported_step_, decided_step_});
  decided_step_ = 0;
  piece_.reset();
  planned_step_ = reported_step_ = 0;
  arrived_ = 0;
  reports_ = 0;
  open_ = !workers_.empty();
  return displaced;
}

void Scheduler::Adopt(WorkerIndex index, absl::Span<const RequestSpec> adopted, Worker& worker,
                      absl::flat_hash_map<RequestId, Placed>& kept) {
  for (const RequestSpec& spec : adopted) {
    if (kept.contains(spec.id) || Knows(spec.id)) continue;
    Placed placed;
    placed.spec = spec;
    placed.worker = index;
    placed.where = Where::kActive;
    // It counts prefill_tokens in step 1.
    placed.first_step = 1;
    placed.enqueued_step = ClockAt(0);
    placed.index = residents_.Add(index, spec, placed.first_step, false, spec.generated_tokens);
    ++worker.active;
    worker.base += spec.prefill_tokens - placed.first_step;
    worker.reserved_kv += spec.kv_reserve_tokens();
    kept.emplace(spec.id, placed);
  }
}

void Scheduler::CloseEpoch() {
  open_ = false;
}

void Scheduler::SetAcceptsNew(WorkerIndex worker, bool accepts_new) {
  if (worker >= 0 && worker < num_workers()) workers_[worker].spec.accepts_new = accepts_new;
}

void Scheduler::SetTime(WorkerIndex worker, double time_per_token, double time_offset) {
  if (worker < 0 || worker >= num_workers()) return;
  workers_[worker].spec.time_per_token = time_per_token;
  workers_[worker].spec.time_offset = time_offset;
}

void Scheduler::SetServiceTime(WorkerIndex worker, double service_time) {
  if (worker >= 0 && worker < num_workers()) workers_[worker].spec.service_time = service_time;
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
  account.idle = options_.coupled ? w.idle && planned_step_ <= w.last_step : AwaitsPlan(w);
  account.prefill = w.prefill;
  return account;
}

std::optional<WorkerIndex> Scheduler::WorkerOf(RequestId id) const {
  const auto it = placed_.find(id);
  if (it == placed_.end()) return std::nullopt;
  return it->second.worker;
}

bool Scheduler::Parked() const {
  return GroupIdle() && (!options_.coupled || TargetStep(false) > planned_step_);
}

}  // namespace bfio::core
