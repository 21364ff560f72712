#include "router/core/policy/balance_route/balance_route.h"

#include <algorithm>

namespace bfio::core {
namespace {

constexpr int64_t kSecondStageSlots = 7;
constexpr size_t kMostCandidates = 1024;

}  // namespace

void BalanceRoutePolicy::Decide(const Snapshot& snapshot, Decision& decision) {
  Start(snapshot);
  while (OpenSlots() > kSecondStageSlots) {
    const WorkerIndex worker = MostFree();
    if (!FindCandidates(snapshot, worker)) continue;
    score_.Reset(Loads(worker), envelope_);
    Give(snapshot, BestCandidate(), worker, decision.assignments);
  }
  while (OpenSlots() > 0) {
    const WorkerIndex worker = LeastLoadedAtTheEnd();
    if (!FindCandidates(snapshot, worker)) continue;
    score_.Reset(Loads(worker), envelope_);
    BestSubset(worker, subset_);
    for (int32_t candidate : subset_) {
      // Slots and the KV need of each request were checked, but not the sum of the KV needs.
      if (free_.Fits(snapshot.waiting[candidates_[candidate]], worker)) {
        Give(snapshot, candidate, worker, decision.assignments);
      }
    }
  }
}

void BalanceRoutePolicy::Start(const Snapshot& snapshot) {
  free_.Reset(snapshot);
  placed_.assign(snapshot.waiting.size(), 0);
  const size_t workers = static_cast<size_t>(free_.workers());
  const int32_t ahead = std::min(horizon_, snapshot.outlook.horizon);
  const size_t row = static_cast<size_t>(snapshot.outlook.horizon) + 1;
  steps_ = static_cast<size_t>(ahead) + 1;
  loads_.resize(workers * steps_);
  envelope_.assign(steps_, 0);
  for (size_t g = 0; g < workers; ++g) {
    for (size_t h = 0; h < steps_; ++h) {
      double& load = loads_[g * steps_ + h];
      load = h == 0 ? static_cast<double>(free_[static_cast<WorkerIndex>(g)].load_tokens)
                    : snapshot.outlook.load[g * row + h];
      envelope_[h] = std::max(envelope_[h], load);
    }
  }
  score_.SetOverflowWeight(overflow_weight_ > 0 ? overflow_weight_ : static_cast<double>(workers));
  closed_.assign(workers, 0);
  first_left_ = 0;
}

absl::Span<double> BalanceRoutePolicy::Loads(WorkerIndex worker) {
  return absl::MakeSpan(loads_).subspan(static_cast<size_t>(worker) * steps_, steps_);
}

int64_t BalanceRoutePolicy::OpenSlots() const {
  int64_t slots = 0;
  for (WorkerIndex g = 0; g < free_.workers(); ++g) slots += closed_[g] ? 0 : free_[g].free_slots;
  return slots;
}

bool BalanceRoutePolicy::FindCandidates(const Snapshot& snapshot, WorkerIndex worker) {
  candidates_.clear();
  sizes_.clear();
  const int32_t waiting = static_cast<int32_t>(snapshot.waiting.size());
  while (first_left_ < waiting && placed_[first_left_]) ++first_left_;
  for (int32_t i = first_left_; i < waiting && candidates_.size() < kMostCandidates; ++i) {
    const WaitingView& request = snapshot.waiting[i];
    if (placed_[i] || !free_.Fits(request, worker)) continue;
    if (!candidates_.empty() && request.priority != snapshot.waiting[candidates_[0]].priority) break;
    candidates_.push_back(i);
    sizes_.push_back(request.prefill_tokens);
  }
  closed_[worker] = candidates_.empty();
  return !candidates_.empty();
}

void BalanceRoutePolicy::Give(const Snapshot& snapshot, int32_t candidate, WorkerIndex worker,
                              std::vector<Assignment>& plan) {
  const int32_t i = candidates_[candidate];
  free_.Take(snapshot.waiting[i], worker);
  plan.push_back({i, worker});
  placed_[i] = 1;
  const absl::Span<double> loads = Loads(worker);
  for (size_t h = 0; h < steps_; ++h) {
    loads[h] += static_cast<double>(sizes_[candidate]);
    envelope_[h] = std::max(envelope_[h], loads[h]);
  }
}

}  // namespace bfio::core
