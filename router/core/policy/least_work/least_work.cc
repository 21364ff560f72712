#include "router/core/policy/least_work/least_work.h"

#include <algorithm>
#include <limits>

#include "router/core/policy/place_in_order.h"
#include "router/core/prefix/prefix_view.h"

namespace bfio::core {
namespace {

// Of the oldest requests, so many are compared where capacity is short: look-ups of some 50 us with 16
// workers.
constexpr size_t kLook = 64;

int64_t CachedOn(const Snapshot& snapshot, const WaitingView& request, WorkerIndex worker) {
  return snapshot.prefixes == nullptr
             ? 0
             : snapshot.prefixes->Cached(request.prefix, request.prefill_tokens, worker);
}

}  // namespace

void LeastWorkPolicy::Decide(const Snapshot& snapshot, Decision& decision) {
  free_.Reset(snapshot);
  pending_.assign(snapshot.workers.size(), 0);
  if (snapshot.prefixes != nullptr) pending_ = snapshot.prefixes->pending;
  placed_.assign(snapshot.waiting.size(), 0);
  if (free_.free_slots() == 0) return;
  FindChoices(snapshot);
  for (const Choice& choice : choices_) {
    if (!choice.away || choice.overdue) Place(snapshot, choice.index, decision);
  }
  KvRefusals refusals;
  refusals.Reset(snapshot.kv);
  for (int32_t i = 0; i < std::ssize(snapshot.waiting) && free_.free_slots() > 0; ++i) {
    const WaitingView& request = snapshot.waiting[i];
    if (placed_[i] || refusals.Refused(request.kv_need, request.kv_reserve_tokens)) continue;
    Place(snapshot, i, decision);
    if (!placed_[i]) refusals.Note(request.kv_need, request.kv_reserve_tokens);
  }
}

void LeastWorkPolicy::FindChoices(const Snapshot& snapshot) {
  choices_.clear();
  if (snapshot.prefixes == nullptr || snapshot.prefixes->caches == nullptr || snapshot.waiting.size() < 2)
    return;
  const size_t count = std::min(snapshot.waiting.size(), kLook);
  for (size_t i = 0; i < count && snapshot.waiting[i].priority == snapshot.waiting[0].priority; ++i)
    choices_.push_back(ChoiceOf(snapshot, static_cast<int32_t>(i)));
  std::stable_sort(choices_.begin(), choices_.end(), [](const Choice& a, const Choice& b) {
    if (a.overdue || b.overdue) return a.overdue && !b.overdue;
    return a.gain > b.gain;
  });
}

LeastWorkPolicy::Choice LeastWorkPolicy::ChoiceOf(const Snapshot& snapshot, int32_t index) const {
  const WaitingView& request = snapshot.waiting[index];
  Choice choice{.index = index};
  const double limit = wait_ratio_ * static_cast<double>(snapshot.FirstCome(request.priority).p99);
  choice.overdue = static_cast<double>(snapshot.step - request.senior_step()) > limit;
  if (request.prefix.empty()) return choice;
  int64_t most = 0, here = 0;
  double sum = 0;
  for (WorkerIndex g = 0; g < free_.workers(); ++g) {
    const int64_t cached = CachedOn(snapshot, request, g);
    sum += static_cast<double>(cached);
    most = std::max(most, cached);
    if (cached > here && free_.Fits(request, g)) here = cached;
  }
  choice.away = here < most;
  choice.gain = static_cast<double>(here) - sum / free_.workers();
  return choice;
}

void LeastWorkPolicy::Place(const Snapshot& snapshot, int32_t index, Decision& decision) {
  const WorkerIndex worker = Choose(snapshot, snapshot.waiting[index]);
  if (worker == kNoWorker) return;
  free_.Take(snapshot.waiting[index], worker);
  placed_[index] = 1;
  decision.assignments.push_back({index, worker});
}

WorkerIndex LeastWorkPolicy::Choose(const Snapshot& snapshot, const WaitingView& request) {
  const int64_t prompt = request.prefill_tokens - request.computed_tokens;
  const double output = snapshot.prefixes == nullptr ? 0 : snapshot.prefixes->output_tokens;
  WorkerIndex best = kNoWorker;
  double least = std::numeric_limits<double>::infinity();
  int64_t best_left = 0;
  for (WorkerIndex turn = 0; turn < free_.workers(); ++turn) {
    const WorkerIndex g = (next_ + turn) % free_.workers();
    if (!free_.Fits(request, g)) continue;
    const int64_t left = std::max<int64_t>(0, prompt - CachedOn(snapshot, request, g));
    const double work = static_cast<double>(pending_[g] + left) + free_[g].active * output;
    if (work > least || (work == least && free_[g].active >= free_[best].active)) continue;
    best = g;
    least = work;
    best_left = left;
  }
  if (best == kNoWorker) return best;
  pending_[best] += best_left;
  next_ = (best + 1) % free_.workers();
  return best;
}

}  // namespace bfio::core
