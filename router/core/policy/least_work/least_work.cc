#include "router/core/policy/least_work/least_work.h"

#include <algorithm>
#include <limits>

#include "router/core/policy/place_in_order.h"
#include "router/core/prefix/prefix_view.h"

namespace bfio::core {

void LeastWorkPolicy::Decide(const Snapshot& snapshot, Decision& decision) {
  free_.Reset(snapshot);
  pending_.assign(snapshot.workers.size(), 0);
  if (snapshot.prefixes != nullptr) pending_ = snapshot.prefixes->pending;
  PlaceInOrder(snapshot, free_, decision.assignments,
               [&](const WaitingView& request) { return Choose(snapshot, request); });
}

WorkerIndex LeastWorkPolicy::Choose(const Snapshot& snapshot, const WaitingView& request) {
  const int64_t prompt = request.prefill_tokens - request.computed_tokens;
  const double output = snapshot.prefixes != nullptr ? snapshot.prefixes->output_tokens : 0;
  WorkerIndex best = kNoWorker;
  double least = std::numeric_limits<double>::infinity();
  int64_t best_left = 0;
  for (WorkerIndex turn = 0; turn < free_.workers(); ++turn) {
    const WorkerIndex g = (next_ + turn) % free_.workers();
    if (!free_.Fits(request, g)) continue;
    const int64_t cached = snapshot.prefixes != nullptr
                               ? snapshot.prefixes->Cached(request.prefix, request.prefill_tokens, g)
                               : 0;
    const int64_t left = std::max<int64_t>(0, prompt - cached);
    const double work =
        static_cast<double>(pending_[static_cast<size_t>(g)] + left) + free_[g].active * output;
    const bool fewer = work == least && free_[g].active < free_[best].active;
    if (work > least || (work == least && !fewer)) continue;
    best = g;
    least = work;
    best_left = left;
  }
  if (best == kNoWorker) return best;
  pending_[static_cast<size_t>(best)] += best_left;
  next_ = (best + 1) % free_.workers();
  return best;
}

}  // namespace bfio::core
