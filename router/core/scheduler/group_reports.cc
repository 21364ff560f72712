// Applies reports to the accounts of a group.
#include <algorithm>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "router/core/scheduler/group_accounts.h"

namespace bfio::core {

absl::Status GroupAccounts::Check(WorkerIndex index, const StepReport& report, int64_t planned,
                                  bool barrier) const {
  // Far above the steps between two reports, and those of an epoch: a load (2^16 requests) cannot overflow.
  constexpr int64_t kMostSteps = int64_t{1} << 20, kLastStep = int64_t{1} << 40;
  if (index < 0 || index >= num_workers())
    return absl::InvalidArgumentError(absl::StrCat("report of unknown rank ", index));
  const Worker& worker = workers_[index];
  const int64_t steps = report.step - worker.last_step;
  if ((barrier ? steps != 1 : steps < 0 || steps > kMostSteps) || report.step > kLastStep) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", index, " reports step ", report.step, " after step ", worker.last_step));
  }
  if (report.applied_plan < 0 || report.applied_plan > planned || report.load_tokens < 0) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", index, " reports applied_plan ",
                                                   report.applied_plan, " (planned: ", planned, "), load ",
                                                   report.load_tokens));
  }
  if (!report.prefill) return absl::OkStatus();
  if (report.prefill->token_budget < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", index, " reports a budget of ", report.prefill->token_budget, " tokens"));
  }
  for (const PendingPrompt& prompt : report.prefill->prompts) {
    if (prompt.tokens >= 1) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", index, " reports a prompt with ", prompt.tokens, " tokens to compute"));
  }
  return absl::OkStatus();
}

void GroupAccounts::Take(WorkerIndex index, const StepReport& report) {
  Worker& worker = workers_[index];
  Acknowledge(index, report);
  TakeRejected(index, report);
  TakePreempted(index, report);
  TakeCached(index, report);
  const int64_t own = worker.base + worker.active * report.step;
  if (report.load_tokens != own) TakeDrift(index, report.step, report.load_tokens - own);
  TakeFinished(index, report);
  TakePending(index, report);
  if (worker.active == 0) worker.base = worker.drift = 0;  // the rest of the drift left with the requests
  TakeHints(index, report);
  CountStepsAlone(index, report);
  CountChunks(index, report);
  if ((report.step + index) / Residents::kSettleSteps > (worker.last_step + index) / Residents::kSettleSteps)
    residents_.SettleAll(index, report.step);
  worker.last_step = report.step;
  worker.reported_load = report.load_tokens;
  worker.prefill = report.prefill;
  worker.idle = report.group_idle;
  worker.extra_slots = report.extra_slots;
  worker.shared_kv_tokens = report.shared_kv_tokens;
  if (report.cache_lost_ppm > 0) caches_.Lost(index, report.cache_lost_ppm);
  if (!report.cache_changes.empty()) caches_.Changed(index, report.cache_changes);
  worker.applied = std::max(worker.applied, report.applied_plan);
}

void GroupAccounts::Acknowledge(WorkerIndex index, const StepReport& report) {
  Worker& worker = workers_[index];
  size_t done = 0;
  int64_t late = 0;
  for (; done < worker.inflight.size() && worker.inflight[done].apply_step <= report.applied_plan; ++done) {
    const Worker::Inflight& entry = worker.inflight[done];
    // A plan's number is a step only in groups with a barrier (planned_step is 0 there).
    if (worker.planned_step == 0 && entry.apply_step < report.step) late = 1;
    const auto it = placed_.find(entry.id);
    if (it == placed_.end() || it->second.worker != index) continue;
    if (entry.drop) {
      // Not `dropped`: the id was requeued and placed here again after the drop of the worker's stale copy
      // was planned.
      if (!it->second.dropped) continue;
      residents_.Settle(index, it->second.index, worker.last_step);
      EndCached(it->second, worker.last_step);
      Remove(it);
      continue;
    }
    // Another placement: the request was refused before its plan was acknowledged, and has been placed here
    // again.
    if (it->second.where != Where::kInflight || it->second.plan != entry.apply_step) continue;
    Start(index, report, it->second);
  }
  worker.inflight.erase(worker.inflight.begin(), worker.inflight.begin() + static_cast<int64_t>(done));
  totals_->late_plans += late;
}

void GroupAccounts::Start(WorkerIndex index, const StepReport& report, Placed& placed) {
  Worker& worker = workers_[index];
  --worker.inflight_placements;
  worker.inflight_base -= placed.spec.prefill_tokens - placed.first_step;
  placed.where = Where::kActive;
  placed.first_step = report.step;
  residents_.Start(index, placed.index, report.step);
  ++worker.active;
  worker.base += placed.spec.prefill_tokens - placed.first_step;
}

void GroupAccounts::TakeRejected(WorkerIndex index, const StepReport& report) {
  // In reverse order, because each is inserted ahead of its equals.
  for (auto id = report.rejected.rbegin(); id != report.rejected.rend(); ++id) {
    const auto it = FindOn(index, *id);
    if (it == placed_.end()) continue;
    EndCached(it->second, report.step - 1);
    Placed placed = it->second;
    Remove(it);
    ++placed.spec.refusals;
    if (PaysPrompt(placed.spec))
      pool_->service().ChargePrompt(placed.spec.tenant, -placed.spec.tokens_to_compute());
    if (!placed.dropped) pool_->Return(placed.spec, placed.enqueued_step);
  }
}

void GroupAccounts::TakePreempted(WorkerIndex index, const StepReport& report) {
  for (const RequestId id : report.preempted) {
    const auto it = FindOn(index, id);
    if (it == placed_.end()) continue;
    // It ran in the step before this one; whether it would have ended in this one is unknown.
    residents_.Settle(index, it->second.index, report.step - 1);
    EndCached(it->second, report.step - 1);
    Remove(it);
    ++totals_->preempted;
  }
}

void GroupAccounts::TakeFinished(WorkerIndex index, const StepReport& report) {
  WaitAdmission& admission = pool_->wait_admission();
  for (const RequestId id : report.finished) {
    const auto it = FindOn(index, id);
    if (it == placed_.end()) continue;
    if (admission.active()) {
      admission.OnEnd(it->second.spec.prefill_tokens - it->second.spec.generated_tokens,
                      residents_.Age(index, it->second.index, report.step));
    }
    residents_.Settle(index, it->second.index, report.step, /*ended=*/true);
    const int64_t age = residents_.Age(index, it->second.index, report.step);
    traffic_.Ended(age);
    const Resident& resident = residents_.Of(index)[static_cast<size_t>(it->second.index)];
    EndCached(it->second, report.step);
    if (age > resident.generated_tokens) ended_.Add(resident, age - resident.generated_tokens);
    Remove(it);
  }
}

void GroupAccounts::CountStepsAlone(WorkerIndex index, const StepReport& report) {
  Worker& worker = workers_[index];
  if (worker.alone == 0 || (report.prefill && !report.prefill->prompts.empty())) return;
  for (const Resident& resident : residents_.Of(index)) {
    Placed& placed = placed_.at(resident.id);
    if (placed.where != Where::kActive || placed.spec.steps_alone == 0) continue;
    if (--placed.spec.steps_alone == 0) --worker.alone;
  }
}

// In its first step a request counts its prompt whatever its growth, so it gets no share of the drift.
void GroupAccounts::TakeDrift(WorkerIndex index, int64_t step, int64_t tokens) {
  totals_->drift_tokens += std::abs(tokens);
  workers_[index].base += tokens;
  workers_[index].drift += tokens;
  const absl::Span<const Resident> residents = residents_.Of(index);
  const auto shares = [&](const Resident& resident) {
    return !resident.inflight && resident.first_step < step;
  };
  const int64_t sharers = std::count_if(residents.begin(), residents.end(), shares);
  // The remainder belongs to some of them; it is unknown to which.
  const int64_t share = sharers == 0 ? 0 : tokens / sharers;
  if (share == 0) return;
  for (const Resident& resident : residents) {
    if (shares(resident)) placed_.at(resident.id).drift += share;
  }
}

void GroupAccounts::TakePending(WorkerIndex index, const StepReport& report) {
  if (!report.prefill) return;
  Worker& worker = workers_[index];
  for (const PendingPrompt& prompt : report.prefill->prompts) {
    const auto it = placed_.find(prompt.id);
    if (it == placed_.end() || it->second.worker != index || it->second.where != Where::kActive) continue;
    // It counts s in the next step, as it did in this one.
    Placed& placed = it->second;
    if (placed.first_step != report.step) continue;
    ++placed.first_step;
    --worker.base;
    residents_.Start(index, placed.index, placed.first_step);
  }
}

void GroupAccounts::CountChunks(WorkerIndex index, const StepReport& report) {
  const Worker& worker = workers_[index];
  if (!worker.prefill || !report.prefill) return;
  // Both lists are in the worker's order, new prompts last. If a worker reorders prompts, some chunks are not
  // counted.
  const std::vector<PendingPrompt>& before = worker.prefill->prompts;
  size_t next = 0;
  for (const PendingPrompt& now : report.prefill->prompts) {
    while (next < before.size() && before[next].id != now.id) ++next;
    if (next == before.size()) break;
    traffic_.Computed(std::max<int64_t>(0, before[next].tokens - now.tokens));
  }
}

void GroupAccounts::EndCached(const Placed& placed, int64_t step) {
  if (!caches_.any()) return;
  const absl::Span<const uint64_t> prefix = placed.spec.prefix_blocks();
  if (Computed(placed, step)) {
    const int64_t age = residents_.Age(placed.worker, placed.index, step);
    return caches_.Ended(placed.worker, prefix, age - placed.spec.generated_tokens);
  }
  int64_t computed = 0;
  if (const std::optional<PrefillReport>& prefill = workers_[placed.worker].prefill) {
    for (const PendingPrompt& prompt : prefill->prompts)
      if (prompt.id == placed.spec.id) computed = placed.spec.prefill_tokens - prompt.tokens;
  }
  caches_.Withdrawn(placed.worker, prefix, std::max<int64_t>(0, computed));
}

void GroupAccounts::TakeCached(WorkerIndex index, const StepReport& report) {
  for (const CachedPrompt& cached : report.cached) {
    const auto it = placed_.find(cached.id);
    if (it == placed_.end() || it->second.worker != index) continue;
    caches_.Observed(index, std::exchange(it->second.cached_tokens, 0), cached.tokens);
  }
}

void GroupAccounts::TakeHints(WorkerIndex index, const StepReport& report) {
  if (!pool_->lookahead().uses_hints()) return;
  for (const CompletionHint& hint : report.hints) {
    // A hint about a request that has just ended or was cancelled is not an error.
    if (const Placed* const placed = Find(index, hint.id, Where::kActive))
      residents_.Hint(index, placed->index, report.step, hint.probability);
  }
}

GroupAccounts::PlacedMap::iterator GroupAccounts::FindOn(WorkerIndex worker, RequestId id) {
  const auto it = placed_.find(id);
  if (it != placed_.end() && it->second.worker == worker) return it;
  ++totals_->unknown_ids;
  return placed_.end();
}

void GroupAccounts::Remove(PlacedMap::iterator it) {
  const Placed& placed = it->second;
  Worker& worker = workers_[placed.worker];
  const int64_t base = placed.spec.prefill_tokens - placed.first_step;
  if (placed.where == Where::kActive) {
    --worker.active;
    worker.base -= base + placed.drift;
    worker.drift -= placed.drift;
  } else {
    --worker.inflight_placements;
    worker.inflight_base -= base;
  }
  worker.Reserve(placed.spec, -1);
  // The last of the worker's residents has taken its index.
  if (const auto moved = residents_.Remove(placed.worker, placed.index)) {
    placed_.find(*moved)->second.index = placed.index;
  }
  // Its entries in `inflight` and `drops` may stay: readers look the id up first.
  placed_.erase(it);
}

}  // namespace bfio::core
