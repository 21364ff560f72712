#include "router/core/scheduler/scheduler_state.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "router/core/scheduler/scheduler.h"

namespace bfio::core {

SchedulerState Scheduler::Save() const {
  SchedulerState state;
  for (WorkerIndex g = 0; g < num_workers(); ++g) {
    const Worker& from = workers_[g];
    SchedulerState::Worker& to = state.workers.emplace_back();
    to.spec = from.spec;
    to.last_step = from.last_step;
    to.planned_step = from.planned_step;
    to.applied = from.applied;
    to.idle = from.idle;
    to.drift = from.drift;
    to.drops = from.drops;
    to.prefill = from.prefill;
    to.inflight.reserve(from.inflight.size());
    for (const Inflight& entry : from.inflight)
      to.inflight.push_back({entry.apply_step, entry.id, entry.drop});
    const absl::Span<const Resident> residents = residents_.Of(g);
    to.residents.reserve(residents.size());
    for (size_t i = 0; i < residents.size(); ++i) {
      const Placed& placed = placed_.at(residents[i].id);
      to.residents.push_back({placed.spec, placed.where == Where::kInflight, placed.first_step,
                              placed.enqueued_step, placed.dropped,
                              residents_.SettledAge(g, static_cast<int32_t>(i)), placed.drift});
    }
  }
  state.waiting.reserve(static_cast<size_t>(pool_.size()));
  for (const WaitingView& view : pool_.views())
    state.waiting.push_back({pool_.Spec(view.id), view.enqueued_step});
  for (WaitGate::Waiting& waiting : wait_.All())
    state.waiting.push_back({std::move(waiting.spec), waiting.enqueued_step, true});
  state.service = service_.Save();
  state.open = open_;
  state.reported_step = reported_step_;
  state.planned_step = planned_step_;
  state.decided_step = decided_step_;
  state.reports = reports_;
  state.epoch_base = epoch_base_;
  state.holder = holder_;
  state.piece = piece_;
  state.totals = totals_;
  return state;
}

absl::Status Scheduler::Restore(const SchedulerState& state) {
  if (!service_.Restore(state.service)) return absl::InvalidArgumentError("a tenant is named twice");
  for (const SchedulerState::Waiting& waiting : state.waiting) {
    if (Waits(waiting.spec.id)) {
      return absl::InvalidArgumentError(absl::StrCat("request ", waiting.spec.id, " waits twice"));
    }
    if (waiting.held_back && wait_.active()) {
      wait_.Add(waiting.spec, waiting.enqueued_step);
    } else {
      pool_.Append(waiting.spec, waiting.enqueued_step);
    }
    service_.RestoreWaiting(waiting.spec.tenant);
  }
  workers_.assign(state.workers.size(), {});
  residents_.Reset(state.workers.size());
  int64_t least_step = state.workers.empty() ? state.reported_step : state.workers.front().last_step;
  for (size_t g = 0; g < state.workers.size(); ++g) {
    least_step = std::min(least_step, state.workers[g].last_step);
    absl::Status status = RestoreWorker(static_cast<WorkerIndex>(g), state.workers[g]);
    if (!status.ok()) return status;
  }
  if (options_.coupled && least_step != state.reported_step) {
    return absl::InvalidArgumentError(
        absl::StrCat("the ranks have reported step ", least_step, ", not ", state.reported_step));
  }
  open_ = state.open && !workers_.empty();
  reported_step_ = state.reported_step;
  planned_step_ = state.planned_step;
  decided_step_ = state.decided_step;
  reports_ = state.reports;
  epoch_base_ = state.epoch_base;
  if (options_.coupled) {
    arrived_ = static_cast<int32_t>(std::count_if(
        workers_.begin(), workers_.end(), [&](const Worker& w) { return w.last_step > reported_step_; }));
  }
  if (gate_.active()) holder_ = state.holder;
  piece_ = state.piece;
  totals_ = state.totals;
  return absl::OkStatus();
}

absl::Status Scheduler::RestoreWorker(WorkerIndex index, const SchedulerState::Worker& from) {
  Worker& worker = workers_[index];
  worker.spec = from.spec;
  worker.last_step = from.last_step;
  worker.planned_step = from.planned_step;
  worker.applied = from.applied;
  worker.idle = from.idle;
  worker.drift = worker.base = from.drift;
  worker.drops = from.drops;
  worker.prefill = from.prefill;
  for (const SchedulerState::Inflight& entry : from.inflight)
    worker.inflight.push_back({entry.apply_step, entry.id, entry.drop});
  for (const SchedulerState::Resident& resident : from.residents) {
    if (Knows(resident.spec.id)) {
      return absl::InvalidArgumentError(absl::StrCat("request ", resident.spec.id, " is in two places"));
    }
    Placed& placed = placed_[resident.spec.id];
    placed.spec = resident.spec;
    placed.worker = index;
    placed.where = resident.inflight ? Where::kInflight : Where::kActive;
    placed.first_step = resident.first_step;
    placed.enqueued_step = resident.enqueued_step;
    placed.dropped = resident.dropped;
    placed.drift = resident.drift;
    placed.index =
        residents_.Add(index, resident.spec, resident.first_step, resident.inflight, resident.settled_age);
    if (resident.dropped) residents_.Drop(index, placed.index);
    const int64_t base = resident.spec.prefill_tokens - resident.first_step;
    // Earlier entries of its id are of placements that were refused.
    for (const Inflight& entry : worker.inflight) {
      if (entry.id == resident.spec.id && !entry.drop) placed.plan = entry.apply_step;
    }
    (resident.inflight ? worker.inflight_placements : worker.active) += 1;
    (resident.inflight ? worker.inflight_base : worker.base) += base;
    if (resident.inflight) worker.inflight_prefill += resident.spec.prefill_tokens;
    worker.reserved_kv += resident.spec.kv_reserve_tokens();
  }
  return absl::OkStatus();
}

}  // namespace bfio::core
