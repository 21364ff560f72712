#include "router/core/solver/improvement.h"

#include <utility>

namespace bfio::core {

bool Improvement::Descend(SquareObjective& objective, Allocation& allocation, Run& run) {
  objective_ = &objective;
  allocation_ = &allocation;
  run_ = &run;
  Load(objective, allocation);
  while (Round()) {
  }
  return !run.Over();
}

void Improvement::Load(const SquareObjective& objective, const Allocation& allocation) {
  admitted_.clear();
  waiting_.clear();
  for (int32_t i = 0; i < allocation.items(); ++i) {
    const SolverItem& item = allocation.item(i);
    auto& list = allocation.WorkerOf(i) == kUnassigned ? waiting_ : admitted_;
    list.push_back({static_cast<double>(item.load), objective.AdmitCost(item), item.priority, i,
                    item.reserved_worker, static_cast<double>(item.precounted_tokens)});
  }
}

bool Improvement::Round() {
  bool improved = false;
  for (Entry& entry : admitted_) {
    if (Swap(entry)) improved = true;
    if (Exchange(entry)) improved = true;
    if (Move(entry)) improved = true;
    if (run_->Over()) return false;
  }
  return improved;
}

bool Improvement::Swap(Entry& admitted) {
  if (!run_->Spend(static_cast<int64_t>(waiting_.size()))) return false;
  const int32_t g = allocation_->WorkerOf(admitted.item);
  const double load = admitted.LoadOn(g);
  const auto price = objective_->Single(g);
  double best_gain = -kLeastGain;
  Entry* best = nullptr;
  for (Entry& candidate : waiting_) {
    const double gain = price(candidate.LoadOn(g) - load) + candidate.cost - admitted.cost;
    if (gain < best_gain && candidate.priority == admitted.priority &&
        allocation_->KvFitsInstead(candidate.item, admitted.item, g)) {
      best_gain = gain;
      best = &candidate;
    }
  }
  if (best == nullptr) return false;
  allocation_->Remove(admitted.item);
  allocation_->Place(best->item, g);
  objective_->Apply(g, best->LoadOn(g) - load);
  std::swap(admitted, *best);
  run_->Improved();
  return true;
}

bool Improvement::Exchange(Entry& admitted) {
  if (!run_->Spend(static_cast<int64_t>(admitted_.size()))) return false;
  const int32_t g = allocation_->WorkerOf(admitted.item);
  double best_gain = -kLeastGain;
  Entry* best = nullptr;
  for (Entry& other : admitted_) {
    const int32_t h = allocation_->WorkerOf(other.item);
    if (h == g || other.load == admitted.load) continue;
    const double gain =
        objective_->Pair(g, h)(other.LoadOn(g) - admitted.LoadOn(g), admitted.LoadOn(h) - other.LoadOn(h));
    if (gain < best_gain && allocation_->KvFitsInstead(other.item, admitted.item, g) &&
        allocation_->KvFitsInstead(admitted.item, other.item, h)) {
      best_gain = gain;
      best = &other;
    }
  }
  if (best == nullptr) return false;
  const int32_t h = allocation_->WorkerOf(best->item);
  allocation_->Remove(admitted.item);
  allocation_->Remove(best->item);
  allocation_->Place(admitted.item, h);
  allocation_->Place(best->item, g);
  objective_->Apply(g, best->LoadOn(g) - admitted.LoadOn(g));
  objective_->Apply(h, admitted.LoadOn(h) - best->LoadOn(h));
  run_->Improved();
  return true;
}

bool Improvement::Move(Entry& admitted) {
  if (allocation_->slots_left() == 0 || !run_->Spend(allocation_->workers())) return false;
  const int32_t g = allocation_->WorkerOf(admitted.item);
  double best_gain = -kLeastGain;
  int32_t best = kUnassigned;
  for (int32_t h = 0; h < allocation_->workers(); ++h) {
    if (h == g || !allocation_->Fits(admitted.item, h)) continue;
    const double gain = objective_->Pair(g, h)(-admitted.LoadOn(g), admitted.LoadOn(h));
    if (gain < best_gain) {
      best_gain = gain;
      best = h;
    }
  }
  if (best == kUnassigned) return false;
  allocation_->Remove(admitted.item);
  allocation_->Place(admitted.item, best);
  objective_->Apply(g, -admitted.LoadOn(g));
  objective_->Apply(best, admitted.LoadOn(best));
  run_->Improved();
  return true;
}

}  // namespace bfio::core
