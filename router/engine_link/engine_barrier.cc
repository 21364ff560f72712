#include "router/engine_link/engine_barrier.h"

#include <algorithm>
#include "absl/strings/str_cat.h"

namespace bfio::router {
namespace {

constexpr double kUnlikeWeight = 1.0 / 64;

}  // namespace

void BarrierCost::Add(uint64_t rank, const BatchLoad& batch, absl::Duration step) {
  const bool next_step =
      std::any_of(entries_.begin(), entries_.end(), [&](const Entry& entry) { return entry.rank == rank; });
  if (next_step) {
    // Without a fit, the batch with most tokens counts as the slowest.
    const auto seconds = [&](const Entry& entry) {
      return cost_ ? cost_->Seconds(entry.batch) : static_cast<double>(entry.batch.tokens);
    };
    const auto slowest =
        std::max_element(entries_.begin(), entries_.end(),
                         [&](const Entry& a, const Entry& b) { return seconds(a) < seconds(b); });
    double took = absl::ToDoubleSeconds(slowest->step);
    if (cost_ && steps_ >= kMature) {
      const double expected = cost_->Seconds(slowest->batch);
      const double near = std::clamp(took, expected / kUnlike, kUnlike * expected);
      unlike_ += kUnlikeWeight * ((near != took ? 1 : 0) - unlike_);
      if (unlike_ < 0.5) took = near;
    }
    fit_.Add(slowest->batch, took);
    if (++steps_ % BatchFit::kMinBatches == 0) cost_ = fit_.cost();
    entries_.clear();
  }
  entries_.push_back({rank, batch, step});
}

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
