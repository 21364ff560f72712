// Chooses the next worker, and the requests that it gets.
#include <algorithm>
#include <limits>
#include <numeric>

#include "router/core/policy/balance_route/balance_route.h"

namespace bfio::core {

WorkerIndex BalanceRoutePolicy::MostFree() {
  WorkerIndex best = kNoWorker;
  for (WorkerIndex g = 0; g < free_.workers(); ++g) {
    if (closed_[g] || free_[g].free_slots == 0) continue;
    const bool better = best == kNoWorker || free_[g].free_slots > free_[best].free_slots ||
                        (free_[g].free_slots == free_[best].free_slots && Loads(g)[0] < Loads(best)[0]);
    if (better) best = g;
  }
  return best;
}

// The simulator's key is (1 - lambda) * load now + lambda * load at the end, where lambda approaches 1 over
// time.
WorkerIndex BalanceRoutePolicy::LeastLoadedAtTheEnd() {
  WorkerIndex best = kNoWorker;
  for (WorkerIndex g = 0; g < free_.workers(); ++g) {
    if (closed_[g] || free_[g].free_slots == 0) continue;
    if (best == kNoWorker || Loads(g).back() < Loads(best).back()) best = g;
  }
  return best;
}

int32_t BalanceRoutePolicy::BestCandidate() const {
  int32_t best = 0;
  double most = -std::numeric_limits<double>::infinity();
  for (int32_t i = 0; i < static_cast<int32_t>(sizes_.size()); ++i) {
    const double score = score_(sizes_[i]);
    if (score <= most) continue;
    best = i;
    most = score;
  }
  return best;
}

// As many requests as there are slots, or fewer while that scores more; one when no subset scores above 0.
void BalanceRoutePolicy::BestSubset(WorkerIndex worker, std::vector<int32_t>& best) {
  double most = 0;
  best.clear();
  const int32_t slots = std::min(free_[worker].free_slots, static_cast<int32_t>(sizes_.size()));
  for (int32_t k = slots; k >= 1; --k) {
    const std::vector<int32_t>& chosen = subset_sum_.Best(sizes_, k, score_.safe());
    const int64_t sum = std::accumulate(chosen.begin(), chosen.end(), int64_t{0},
                                        [&](int64_t total, int32_t i) { return total + sizes_[i]; });
    const double score = score_(sum);
    if (score > most) {
      most = score;
      best = chosen;
    }
    if (sum <= score_.safe()) break;
  }
  if (best.empty()) best.push_back(BestCandidate());
}

}  // namespace bfio::core
