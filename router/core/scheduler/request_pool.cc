#include "router/core/scheduler/request_pool.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace bfio::core {

RequestPool::RequestPool(const SchedulerOptions& options, std::unique_ptr<Lookahead> lookahead)
    : max_waiting_(options.max_waiting),
      lookahead_(lookahead != nullptr ? std::move(lookahead) : *MakeLookahead("none")),
      held_back_(options.wait) {}

// --- requests come and go ---

absl::Status RequestPool::Enqueue(const RequestSpec& request) {
  if (size() >= max_waiting_) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the waiting pool is full (", max_waiting_, " requests)"));
  }
  // A request that has begun (elsewhere, before a restart) does not wait for a batch.
  if (held_back_.active() && request.generated_tokens == 0) {
    held_back_.Add(request, NextStep());
  } else {
    waiting_.Add(request, NextStep());
  }
  service_.OnWaiting(request.tenant);
  return absl::OkStatus();
}

void RequestPool::Requeue(const RequestSpec& request) {
  waiting_.AddFront(request, NextStep() - request.waited_steps.value_or(0));
  service_.OnWaiting(request.tenant);
}

void RequestPool::Return(const RequestSpec& request, int64_t enqueued_step) {
  waiting_.Return(request, enqueued_step);
  service_.OnWaiting(request.tenant);
}

bool RequestPool::Remove(RequestId id) {
  if (waiting_.Contains(id)) {
    service_.OnLeft(waiting_.Spec(id).tenant);
    return waiting_.Remove(id);
  }
  if (!held_back_.Contains(id)) return false;
  service_.OnLeft(held_back_.Spec(id).tenant);
  return held_back_.Remove(id);
}

int64_t RequestPool::ReleaseBatches(int64_t step, bool idle) {
  if (!held_back_.active()) return 0;
  released_.clear();
  held_back_.Release(step, idle, released_);
  int64_t late = 0;
  for (const WaitGate::Waiting& released : released_) {
    waiting_.Add(released.spec, released.enqueued_step);
    late += released.enqueued_step < step ? 1 : 0;
  }
  return late;
}

// --- what policies see ---

absl::Span<WaitingView> RequestPool::Window(int64_t count) {
  return waiting_.mutable_views().subspan(0, static_cast<size_t>(count));
}

int64_t RequestPool::TakeShare(int64_t free_slots, int64_t slots_elsewhere) {
  const int64_t all = waiting_.size(), slots = free_slots + slots_elsewhere;
  if (slots_elsewhere == 0 || all >= slots) return all;
  int64_t fresh = 0;
  for (WaitingView& view : waiting_.mutable_views()) fresh += std::exchange(view.passed_over, true) ? 0 : 1;
  return all - fresh + (fresh * free_slots + slots - 1) / slots;
}

void RequestPool::Take(absl::Span<const Assignment> assignments) {
  for (const Assignment& assignment : assignments)
    service_.OnLeft(waiting_.views()[static_cast<size_t>(assignment.waiting_index)].tenant);
  waiting_.RemoveMany(assignments);
}

void RequestPool::OnDecision(int64_t step, absl::Span<const WaitingView> seen, int64_t admitted) {
  int64_t oldest = step;
  for (const WaitingView& request : seen) oldest = std::min(oldest, request.enqueued_step);
  first_come_.Decide(step, waiting_.size() + waiting_.hidden(), admitted, oldest);
}

void RequestPool::FillTenantExcess(absl::Span<WaitingView> window) const {
  if (service_.tenants() <= 1) return;  // 0 for the only one
  const double least = service_.LeastWaiting();
  uint32_t tenant = 0;
  double excess = std::max(0.0, service_.Served(tenant) - least);
  for (WaitingView& view : window) {
    if (view.tenant != tenant) {
      tenant = view.tenant;
      excess = std::max(0.0, service_.Served(tenant) - least);
    }
    view.tenant_excess_tokens = excess;
  }
}

void RequestPool::ClearCurves() {
  if (!std::exchange(curves_set_, false)) return;
  for (WaitingView& view : waiting_.mutable_views()) view.curve = 0;
}

// --- time ---

void RequestPool::CountSteps(int64_t ranks, int64_t own_ranks, std::optional<int64_t> largest_load) {
  if (!clock_.AddSteps(ranks, own_ranks)) return;
  lookahead_->Advance();
  if (largest_load && held_back_.active()) {
    held_back_.OnStep(*largest_load, static_cast<int32_t>(std::max(own_ranks, clock_.open_ranks())));
  }
}

// --- copies ---

PoolState RequestPool::Save() const {
  PoolState state;
  state.waiting.reserve(static_cast<size_t>(size()));
  for (const WaitingView& view : waiting_.views())
    state.waiting.push_back({waiting_.Spec(view.id), view.enqueued_step, false, view.passed_over});
  for (WaitGate::Waiting& waiting : held_back_.All())
    state.waiting.push_back({std::move(waiting.spec), waiting.enqueued_step, true});
  state.service = service_.Save();
  state.clock = clock_.Save();
  return state;
}

absl::Status RequestPool::Restore(const PoolState& state) {
  if (!service_.Restore(state.service)) return absl::InvalidArgumentError("a tenant is named twice");
  for (const PoolState::Waiting& waiting : state.waiting) {
    if (Waits(waiting.spec.id)) {
      return absl::InvalidArgumentError(absl::StrCat("request ", waiting.spec.id, " waits twice"));
    }
    if (waiting.held_back && held_back_.active()) {
      held_back_.Add(waiting.spec, waiting.enqueued_step);
    } else {
      waiting_.Append(waiting.spec, waiting.enqueued_step, waiting.passed_over);
    }
    service_.RestoreWaiting(waiting.spec.tenant);
  }
  clock_.Restore(state.clock);
  return absl::OkStatus();
}

}  // namespace bfio::core
