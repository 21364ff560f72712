#include "router/core/policy/metered/metered.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "router/core/policy/place_in_order.h"
#include "router/core/prefill/release_planner.h"

namespace bfio::core {

void MeteredPolicy::Decide(const Snapshot& snapshot, Decision& decision) {
  if (snapshot.prefill == nullptr) return placing_->Decide(snapshot, decision);
  const double level_s = Bind(snapshot);
  int64_t slots = 0;
  for (const WorkerView& worker : snapshot.workers) slots += worker.free_slots;
  if (std::cmp_less_equal(snapshot.waiting.size(), slots)) {
    PlaceBindings(snapshot, decision);
  } else {
    PlaceWithin(snapshot, decision);
  }
  // Without decodes no prompt is delayed.
  if (std::isfinite(level_s)) decision.level_s = level_s;
}

double MeteredPolicy::Bind(const Snapshot& snapshot) {
  bindings_.clear();
  ranks_ = snapshot.prefill->ranks;
  for (size_t g = 0; g < ranks_.size(); ++g) ranks_[g].free_slots = snapshot.workers[g].free_slots;
  double level_s = 0;
  size_t first = 0;
  do {
    size_t end = first;
    while (end < snapshot.waiting.size() &&
           snapshot.waiting[end].priority == snapshot.waiting[first].priority) {
      ++end;
    }
    const size_t before = bindings_.size();
    level_s = BindClass(snapshot, first, end);
    // A lower class takes what a higher one leaves.
    if (bindings_.size() - before < end - first) break;
    first = end;
  } while (first < snapshot.waiting.size());
  return level_s;
}

double MeteredPolicy::BindClass(const Snapshot& snapshot, size_t first, size_t end) {
  const PrefillTraffic& traffic = snapshot.prefill->traffic;
  waiting_.clear();
  for (size_t i = first; i < end; ++i) {
    const WaitingView& request = snapshot.waiting[i];
    const int64_t steps = std::max<int64_t>(0, snapshot.step - request.senior_step());
    waiting_.push_back(
        {request.prefill_tokens - request.computed_tokens, static_cast<double>(steps) * traffic.step_s,
         DueIn(request.ttft_objective_s, snapshot.step - request.enqueued_step, traffic.step_s),
         request.computed_tokens});
  }
  const PrefillDecision plan = Plan(*snapshot.prefill);
  for (const PrefillDecision::Binding& binding : plan.bindings) {
    bindings_.push_back({static_cast<int32_t>(first) + binding.waiting, binding.rank});
    const WaitingPrompt& prompt = waiting_[binding.waiting];
    ranks_[binding.rank].Add({prompt.tokens, prompt.done}, prompt.due_s);
    --ranks_[binding.rank].free_slots;
  }
  return plan.level_s;
}

PrefillDecision MeteredPolicy::Plan(const PrefillView& prefill) const {
  if (!prefill.releases_only) return PlanPrefill(ranks_, waiting_, prefill.traffic, PrefillSettings());
  const ReleaseSettings settings{.step_tokens = std::max<int64_t>(1, prefill.token_budget)};
  return {PlanRelease(ranks_, waiting_, prefill.traffic, settings), std::numeric_limits<double>::infinity()};
}

void MeteredPolicy::PlaceBindings(const Snapshot& snapshot, Decision& decision) {
  free_.Reset(snapshot);
  for (const Assignment& binding : bindings_) {
    const WaitingView& request = snapshot.waiting[binding.waiting_index];
    WorkerIndex worker = binding.worker;
    // The bindings do not consider memory.
    if (!free_.Fits(request, worker)) {
      worker = LeastKey(free_, request, [](const WorkerView& view) { return view.load_tokens; });
    }
    if (worker == kNoWorker) continue;
    free_.Take(request, worker);
    decision.assignments.push_back({binding.waiting_index, worker});
  }
}

void MeteredPolicy::PlaceWithin(const Snapshot& snapshot, Decision& decision) {
  views_.assign(snapshot.workers.begin(), snapshot.workers.end());
  for (WorkerView& view : views_) view.free_slots = 0;
  for (const Assignment& binding : bindings_) ++views_[binding.worker].free_slots;
  Snapshot within = snapshot;
  within.workers = views_;
  placing_->Decide(within, decision);
}

}  // namespace bfio::core
