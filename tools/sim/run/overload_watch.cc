#include "tools/sim/run/overload_watch.h"

#include <algorithm>

namespace bfio::sim {

void OverloadWatch::Add(int64_t prompt_tokens) {
  const int64_t count = ++waiting_[prompt_tokens];
  if (count == static_cast<int64_t>(lengths_with_.size())) lengths_with_.push_back(0);
  --lengths_with_[count - 1];
  ++lengths_with_[count];
  most_ = std::max(most_, count);
  ++pool_;
}

void OverloadWatch::Remove(int64_t prompt_tokens) {
  const auto it = waiting_.find(prompt_tokens);
  const int64_t count = it->second--;
  if (count == 1) waiting_.erase(it);
  --lengths_with_[count];
  ++lengths_with_[count - 1];
  // The length that had the maximum number of requests now has one less.
  if (count == most_ && lengths_with_[count] == 0) --most_;
  --pool_;
}

void OverloadWatch::Decide(int64_t free_slots) {
  if (free_slots <= 0) return;
  ++decisions_;
  if (pool_ - most_ >= free_slots) ++met_;
}

double OverloadWatch::share() const {
  return decisions_ == 0 ? 1 : static_cast<double>(met_) / static_cast<double>(decisions_);
}

}  // namespace bfio::sim
