#include "router/engine_link/barrier_cost.h"

#include <algorithm>

namespace bfio::router {

void BarrierCost::Add(uint64_t rank, const BatchLoad& batch, absl::Duration step) {
  const bool next_step =
      std::any_of(entries_.begin(), entries_.end(), [&](const Entry& entry) { return entry.rank == rank; });
  if (next_step) {
    const std::optional<BatchCost> cost = fit_.cost();
    // Without a fit the batch with most tokens is taken for the slowest.
    const auto seconds = [&](const Entry& entry) {
      return cost ? cost->Seconds(entry.batch) : static_cast<double>(entry.batch.tokens);
    };
    const auto slowest =
        std::max_element(entries_.begin(), entries_.end(),
                         [&](const Entry& a, const Entry& b) { return seconds(a) < seconds(b); });
    fit_.Add(slowest->batch, absl::ToDoubleSeconds(slowest->step));
    ++steps_;
    entries_.clear();
  }
  entries_.push_back({rank, batch, step});
}

}  // namespace bfio::router
