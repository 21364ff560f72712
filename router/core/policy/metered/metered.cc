#include "router/core/policy/metered/metered.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "router/core/policy/fair_order.h"
#include "router/core/policy/place_in_order.h"
#include "router/core/prefix/prefix_caches.h"
#include "router/core/prefix/prefix_view.h"

namespace bfio::core {
namespace {

// Maximum of prompts times ranks for which prefixes are looked up, and minimum number of prompts: about a
// millisecond.
constexpr size_t kMostLookUps = 1 << 12, kLeastLooks = 16;

}  // namespace

void MeteredPolicy::Decide(const Snapshot& snapshot, Decision& decision) {
  if (snapshot.prefill == nullptr) return placing_->Decide(snapshot, decision);
  const double level_s = Bind(snapshot);
  const auto bound = std::ssize(bindings_);
  if (bound == free_.free_slots() && bound < std::ssize(snapshot.waiting)) {
    PlaceWithin(snapshot, decision);
  } else {
    PlaceBindings(snapshot, decision);
  }
  // The level is infinite when no request decodes: then no prompt is delayed.
  if (std::isfinite(level_s)) decision.level_s = level_s;
}

double MeteredPolicy::Bind(const Snapshot& snapshot) {
  bindings_.clear();
  ranks_ = snapshot.prefill->ranks;
  free_.Reset(snapshot);
  free_.LimitSlotsToMemory(snapshot.waiting);
  refusals_.Reset(snapshot.kv);
  for (size_t g = 0; g < ranks_.size(); ++g)
    ranks_[g].free_slots = free_[static_cast<WorkerIndex>(g)].free_slots;
  still_held_.clear();
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
    // A lower class of priority gets only the capacity that a higher one leaves.
    if (bindings_.size() - before < order_.size()) break;
    first = end;
  } while (first < snapshot.waiting.size());
  held_since_.swap(still_held_);
  return level_s;
}

double MeteredPolicy::BindClass(const Snapshot& snapshot, size_t first, size_t end) {
  const PrefillTraffic& traffic = snapshot.prefill->traffic;
  // Where the plan takes the first requests, they are those of the least served tenants, and of each tenant's
  // those of the largest age over the length (highest response ratio next), but none that wait too long.
  const absl::Span<const WaitingView> waiting = snapshot.waiting.subspan(first, end - first);
  const int32_t priority = first < end ? snapshot.waiting[first].priority : 0;
  const double longest_wait = kLongestWait * static_cast<double>(snapshot.FirstCome(priority).p99);
  urgency_.clear();
  for (const WaitingView& request : waiting) {
    const auto age = static_cast<double>(std::max<int64_t>(0, snapshot.step - request.senior_step()) + 1);
    const auto tokens = static_cast<double>(request.prefill_tokens - request.computed_tokens);
    urgency_.push_back(age > longest_wait ? std::numeric_limits<double>::infinity()
                                          : age / std::max(1.0, tokens));
  }
  FairOrder(waiting, traffic.mean_output_tokens, urgency_, order_);
  std::erase_if(order_, [&](int32_t i) { return !FitsSomewhere(waiting[static_cast<size_t>(i)]); });
  waiting_.clear();
  for (const int32_t i : order_) {
    const WaitingView& request = waiting[static_cast<size_t>(i)];
    const int64_t steps = std::max<int64_t>(0, snapshot.step - request.senior_step());
    // Only the next ones have room.
    int64_t held = 0;
    if (std::ssize(waiting_) < free_.free_slots()) {
      const auto before = held_since_.find(request.id);
      const int64_t since = before == held_since_.end() ? snapshot.step : before->second;
      still_held_[request.id] = since;
      held = std::min(steps, snapshot.step - since);
    }
    waiting_.push_back(
        {.tokens = request.prefill_tokens - request.computed_tokens,
         .waited_s = static_cast<double>(steps) * traffic.step_s,
         .due_s = DueIn(request.ttft_objective_s, snapshot.step - request.enqueued_step, traffic.step_s),
         .done = request.computed_tokens,
         .crowded_s = static_cast<double>(steps - held) * traffic.step_s});
  }
  FindCached(snapshot, waiting);
  const PrefillDecision plan = Plan(snapshot, priority);
  for (const PrefillDecision::Binding& binding : plan.bindings) {
    const int32_t index = order_[static_cast<size_t>(binding.waiting)];
    bindings_.push_back({static_cast<int32_t>(first) + index, binding.rank});
    const WaitingPrompt& prompt = waiting_[binding.waiting];
    ranks_[binding.rank].Add(prompt.On(binding.rank), prompt.due_s);
    --ranks_[binding.rank].free_slots;
  }
  return plan.level_s;
}

bool MeteredPolicy::FitsSomewhere(const WaitingView& request) {
  if (refusals_.Refused(request.kv_need, request.kv_reserve_tokens)) return false;
  if (free_.FitsSomewhere(request)) return true;
  refusals_.Note(request.kv_need, request.kv_reserve_tokens);
  return false;
}

void MeteredPolicy::FindCached(const Snapshot& snapshot, absl::Span<const WaitingView> waiting) {
  const PrefixCaches* const caches = snapshot.prefixes == nullptr ? nullptr : snapshot.prefixes->caches;
  if (caches == nullptr) return;
  const size_t ranks = ranks_.size();
  const size_t looks = std::min(waiting_.size(), std::max(kLeastLooks, kMostLookUps / ranks));
  cached_.assign(looks * ranks, 0);
  for (size_t i = 0; i < looks; ++i) {
    const WaitingView& request = waiting[static_cast<size_t>(order_[i])];
    if (request.prefix.empty()) continue;
    bool any = false;
    for (size_t g = 0; g < ranks; ++g) {
      const auto rank = static_cast<WorkerIndex>(g);
      if (!snapshot.workers[g].accepts_new || !caches->Has(rank, request.prefix.front())) continue;
      const int64_t found = caches->Expected(rank, request.prefix, request.prefill_tokens);
      cached_[i * ranks + g] =
          std::clamp<int64_t>(found - request.computed_tokens, 0, waiting_[i].tokens - 1);
      any = any || found > 0;
    }
    if (any) waiting_[i].cached = absl::MakeConstSpan(cached_).subspan(i * ranks, ranks);
  }
}

PrefillDecision MeteredPolicy::Plan(const Snapshot& snapshot, int32_t priority) const {
  const PrefillView& prefill = *snapshot.prefill;
  PrefillSettings settings;
  if (prefill.releases_only) {
    const double p99_s = static_cast<double>(snapshot.FirstCome(priority).p99) * prefill.traffic.step_s;
    settings.step_tokens = std::max<int64_t>(1, prefill.token_budget);
    settings.longest_wait_s = kLongestWait * p99_s;
  }
  return PlanPrefill(ranks_, waiting_, prefill.traffic, prefill.terms, settings);
}

void MeteredPolicy::PlaceBindings(const Snapshot& snapshot, Decision& decision) {
  free_.Reset(snapshot);
  for (const Assignment& binding : bindings_) {
    const WaitingView& request = snapshot.waiting[binding.waiting_index];
    WorkerIndex worker = binding.worker;
    // The bindings do not account for memory.
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
