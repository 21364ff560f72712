#include "router/engine_link/barrier_watch.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace bfio::router {

void BarrierWatch::OnStep(uint64_t rank, bool decodes) {
  if (!decodes) return OnIdle(rank);
  const auto it = steps_.find(rank);
  if (it == steps_.end()) {
    steps_[rank] = 0;
    return StartOver();
  }
  if (++it->second < kSteps) return;
  if (steps_.size() > 1) {
    fewest_ = std::min_element(steps_.begin(), steps_.end(), [](const auto& a, const auto& b) {
                return a.second < b.second;
              })->second;
    most_ = it->second;
    const bool apart = static_cast<double>(most_ - fewest_) > kShare * static_cast<double>(most_);
    apart_ = apart ? apart_ + 1 : 0;
  }
  StartOver();
}

void BarrierWatch::OnIdle(uint64_t rank) {
  if (steps_.erase(rank) > 0) StartOver();
}

void BarrierWatch::StartOver() {
  for (auto& [rank, steps] : steps_) steps = 0;
}

std::string BarrierWatch::TakeWarning() {
  if (told_ || apart_ < kWindows) return "";
  told_ = true;
  return absl::StrCat("one of its ranks took ", most_, " steps while another that decoded took ", fewest_);
}

}  // namespace bfio::router
