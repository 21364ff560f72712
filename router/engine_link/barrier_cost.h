// The cost of steps of ranks that meet in a barrier inside their engines, fitted from outside.
//
// Purpose: a step takes as long as the slowest rank's batch, so its time depends on that batch alone. The
// batches of one step are gathered over the ranks, and the one that should take longest, by the fit so far,
// goes into the fit with the step's time. All ranks have the same cost. It changes every
// BatchFit::kMinBatches steps only, because two fits that explain the steps equally well may give a rank's
// part very different times. Steps are timed from outside, by when tokens arrive, so some are far from the
// fit: one that takes kUnlike times as long, or as short, counts as that, as long as most do not. Pure.
// Threads: one. Tokens, seconds.
#ifndef BFIO_ROUTER_ENGINE_LINK_BARRIER_COST_H_
#define BFIO_ROUTER_ENGINE_LINK_BARRIER_COST_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "common/cost/batch_fit.h"
#include "common/cost/batch_time.h"

namespace bfio::router {

class BarrierCost {
 public:
  static constexpr double kUnlike = 1.5;
  // Steps after which the fit is good enough for that.
  static constexpr int64_t kMature = 512;

  // A rank has ended a step with that batch. A rank's second batch begins the next step. `rank`: any number
  // that is its own.
  void Add(uint64_t rank, const BatchLoad& batch, absl::Duration step);

  // None until the steps determine it.
  std::optional<BatchCost> cost() const { return cost_; }
  // Changes with the cost.
  int64_t version() const { return steps_ / BatchFit::kMinBatches; }

 private:
  struct Entry {
    uint64_t rank;
    BatchLoad batch;
    absl::Duration step;
  };

  // The present step's.
  std::vector<Entry> entries_;
  int64_t steps_ = 0;
  // The share of steps that were unlike the fit lately.
  double unlike_ = 0;
  BatchFit fit_;
  // Of the last version.
  std::optional<BatchCost> cost_;
};

}  // namespace bfio::router

#endif  // BFIO_ROUTER_ENGINE_LINK_BARRIER_COST_H_
