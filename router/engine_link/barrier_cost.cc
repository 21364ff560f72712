#include "router/engine_link/barrier_cost.h"

#include <algorithm>

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

}  // namespace bfio::router
