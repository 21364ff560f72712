#include "router/core/scheduler/request_pool.h"

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
  if (request.held_to) {
    if (for_ranks_.size() >= MostForRanks(max_waiting_)) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "requests for single ranks already take half of the waiting pool (", max_waiting_, " requests)"));
    }
  } else if (held_back_.active() && request.generated_tokens == 0) {
    // One that has begun (elsewhere, before a restart) does not wait for a batch.
    held_back_.Add(request, NextStep());
    service_.OnWaiting(request.tenant);
    return absl::OkStatus();
  }
  Arrive(request, NextStep()).Add(request, NextStep());
  return absl::OkStatus();
}

WaitingPool& RequestPool::Arrive(const RequestSpec& request, int64_t since) {
  service_.OnWaiting(request.tenant);
  if (request.held_to) return for_ranks_;
  first_come_[request.priority].Arrive(since, request.tenant);
  return waiting_;
}

void RequestPool::Requeue(const RequestSpec& request) {
  const int64_t since = NextStep() - request.waited_steps.value_or(0);
  WaitingPool& pool = Arrive(request, since);
  // Prompts that are computed come one after another, and the KV of each is kept for a limited time.
  request.computed_tokens > 0 ? pool.Add(request, since) : pool.AddFront(request, since);
}

void RequestPool::Return(const RequestSpec& request, int64_t enqueued_step) {
  Arrive(request, enqueued_step).Return(request, enqueued_step);
}

bool RequestPool::Remove(RequestId id) {
  if (waiting_.Contains(id)) {
    service_.OnLeft(waiting_.Spec(id).tenant);
    first_come_[waiting_.Spec(id).priority].Leave(waiting_.Spec(id).tenant);
    return waiting_.Remove(id);
  }
  if (for_ranks_.Contains(id)) {
    service_.OnLeft(for_ranks_.Spec(id).tenant);
    return for_ranks_.Remove(id);
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
  for (const WaitAdmission::Waiting& released : released_) {
    waiting_.Add(released.spec, released.enqueued_step);
    first_come_[released.spec.priority].Arrive(released.enqueued_step, released.spec.tenant);
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

void RequestPool::AppendHeld(absl::Span<const WorkerView> workers, std::vector<WaitingView>& held) const {
  for (const WaitingView& view : for_ranks_.views()) {
    const RequestSpec& request = for_ranks_.Spec(view.id);
    if (request.held_to->group != deciding_.group || std::cmp_greater_equal(view.held_to, workers.size()) ||
        workers[view.held_to].free_slots <= 0) {
      continue;
    }
    if (deciding_.ability.Takes(request)) held.push_back(view);
  }
}

void RequestPool::Take(absl::Span<const Assignment> assignments, int64_t step) {
  if (waiting_.empty()) return;
  for (auto& [priority, first_come] : first_come_) {
    int64_t admitted = 0;
    for (const Assignment& assignment : assignments)
      admitted += waiting_.views()[static_cast<size_t>(assignment.waiting_index)].priority == priority;
    first_come.Decide(step, admitted, [&](uint32_t tenant) { return service_.MeanCharge(tenant); });
  }
  for (const Assignment& assignment : assignments)
    service_.OnLeft(waiting_.views()[static_cast<size_t>(assignment.waiting_index)].tenant);
  waiting_.RemoveMany(assignments);
}

absl::Span<const ClassWait> RequestPool::FirstComeWaits(int64_t step) {
  class_waits_.clear();
  for (const auto& [priority, first_come] : first_come_) {
    // Percentiles describe the past; in a burst the next wait is longer.
    const int64_t next = first_come.WaitOfNext(step);
    class_waits_.push_back(
        {priority, std::max(next, first_come.p99()), std::max(next, first_come.long_run_p99())});
  }
  return class_waits_;
}

std::optional<double> RequestPool::LeastServed(absl::Span<const WaitingView> views,
                                               const FreeCapacity& free) const {
  std::optional<double> least;
  // Whether a request fits is unknown where no slot is free.
  const bool kv_matters = free.free_slots() > 0;
  KvRefusals refusals;
  refusals.Reset(free.kv());
  for (const WaitingView& view : views) {
    const double served = service_.Served(view.tenant);
    if (least && served >= *least) continue;
    if (kv_matters && refusals.Refused(view.kv_need, view.kv_reserve_tokens)) continue;
    if (!kv_matters || free.FitsSomewhere(view)) {
      least = served;
    } else {
      refusals.Note(view.kv_need, view.kv_reserve_tokens);
    }
  }
  return least;
}

void RequestPool::FillTenants(absl::Span<WaitingView> window, const FreeCapacity& free, int64_t step) {
  if (service_.tenants() <= 1) return;  // stays 0 with a single tenant
  std::optional<double> least_of_all;
  for (size_t begin = 0, end = 0; begin < window.size(); begin = end) {
    while (end < window.size() && window[end].priority == window[begin].priority) ++end;
    const absl::Span<WaitingView> of_class = window.subspan(begin, end - begin);
    const std::optional<double> least = LeastServed(of_class, free);
    if (least && (!least_of_all || *least < *least_of_all)) least_of_all = least;
    const VirtualFcfs& first_come = first_come_[of_class[0].priority];
    for (WaitingView& view : of_class) {
      view.tenant_excess_tokens = least ? std::max(0.0, service_.Served(view.tenant) - *least) : 0;
      view.tenant_reference_wait = first_come.WaitOfNext(step, view.tenant);
    }
  }
  if (least_of_all) service_.SetFloor(*least_of_all);
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

// --- views ---

int64_t RequestPool::tokens_to_compute() const {
  return waiting_.tokens_to_compute() + held_back_.tokens_to_compute() + for_ranks_.tokens_to_compute();
}

}  // namespace bfio::core
