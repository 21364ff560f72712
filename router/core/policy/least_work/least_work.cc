#include "router/core/policy/least_work/least_work.h"

#include <algorithm>
#include <limits>

#include "router/core/policy/place_in_order.h"
#include "router/core/prefix/prefix_view.h"

namespace bfio::core {
namespace {

// So many of the oldest are compared where capacity is short. With 512 waits are as long.
constexpr int32_t kLook = 64;
// In the 99th percentile under first come, first served. Waits of a hot prefix's requests are longer than
// others'; at 1.15 they go to workers without it so often that all wait twice as long.
constexpr double kLongestWait = 2;

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
  const auto waiting = static_cast<int32_t>(snapshot.waiting.size());
  // A lower class takes what a higher one leaves.
  for (int32_t first = 0, end = 0; first < waiting && free_.free_slots() > 0; first = end) {
    while (end < waiting && snapshot.waiting[end].priority == snapshot.waiting[first].priority) ++end;
    const int32_t look = waiting > 1 ? std::min(end, first + kLook) : first;
    for (int32_t i = first; i < look && free_.free_slots() > 0; ++i) {
      if (!LetsOthersGoFirst(snapshot, snapshot.waiting[i])) Place(snapshot, i, decision);
    }
    KvRefusals refusals;
    refusals.Reset(snapshot.kv);
    for (int32_t i = first; i < end && free_.free_slots() > 0; ++i) {
      const WaitingView& request = snapshot.waiting[i];
      if (placed_[i] || refusals.Refused(request.kv_need, request.kv_reserve_tokens)) continue;
      Place(snapshot, i, decision);
      if (!placed_[i]) refusals.Note(request.kv_need, request.kv_reserve_tokens);
    }
  }
}

bool LeastWorkPolicy::LetsOthersGoFirst(const Snapshot& snapshot, const WaitingView& request) const {
  if (request.prefix.empty()) return false;
  const double limit = kLongestWait * static_cast<double>(snapshot.FirstCome(request.priority).p99);
  if (static_cast<double>(snapshot.step - request.senior_step()) > limit) return false;
  const PrefixCaches* const caches = snapshot.prefixes == nullptr ? nullptr : snapshot.prefixes->caches;
  if (caches == nullptr) return false;
  const int64_t most = caches->FindAnywhere(request.prefix, request.prefill_tokens);
  if (most == 0) return false;
  for (WorkerIndex g = 0; g < free_.workers(); ++g) {
    if (free_[g].free_slots <= 0 || !free_.Fits(request, g)) continue;
    // What cannot be trusted is not worth waiting for.
    const int64_t lacks = most - caches->Find(g, request.prefix, request.prefill_tokens);
    if (caches->Trusted(g, lacks) < kPrefixBlockTokens) return false;
  }
  return true;
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
  const double per_token = 1 + (snapshot.prefixes == nullptr ? 0 : snapshot.prefixes->hit_share);
  WorkerIndex best = kNoWorker;
  double least = std::numeric_limits<double>::infinity();
  int64_t best_left = 0;
  for (WorkerIndex turn = 0; turn < free_.workers(); ++turn) {
    const WorkerIndex g = (next_ + turn) % free_.workers();
    if (!free_.Fits(request, g)) continue;
    const int64_t left = std::max<int64_t>(0, prompt - CachedOn(snapshot, request, g));
    const double work =
        static_cast<double>(pending_[g]) + per_token * static_cast<double>(left) + free_[g].active * output;
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
