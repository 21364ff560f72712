// The cost of steps of ranks that meet in a barrier inside their engines, fitted from outside.
//
// Purpose: a step takes as long as the slowest rank's batch, so its time depends on that batch alone. The
// batches of one step are gathered over the ranks. The fit gets the step's time, and the batch that should
// take longest by the fit so far. All ranks have the same cost. It changes only every BatchFit::kMinBatches
// steps, because two fits that explain the steps equally well may give very different times for a rank's
// part. Steps are timed by the arrival of tokens, so some are far from the fit. A time above kUnlike times
// the expected one, or below 1 / kUnlike of it, counts as that bound while most steps are nearer. Pure.
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
  // Number of steps after which the fit is good enough to bound steps in this way.
  static constexpr int64_t kMature = 512;

  // A rank has ended a step with that batch. A rank's second batch begins the next step. `rank`: any number
  // that identifies the rank.
  void Add(uint64_t rank, const BatchLoad& batch, absl::Duration step);

  // Empty until the steps determine it.
  std::optional<BatchCost> cost() const { return cost_; }
  // Changes with the cost.
  int64_t version() const { return steps_ / BatchFit::kMinBatches; }

 private:
  struct Entry {
    uint64_t rank;
    BatchLoad batch;
    absl::Duration step;
  };

  // The batches of the present step.
  std::vector<Entry> entries_;
  int64_t steps_ = 0;
  // The recent share of steps outside kUnlike.
  double unlike_ = 0;
  BatchFit fit_;
  // The cost of the last version.
  std::optional<BatchCost> cost_;
};

}  // namespace bfio::router

#endif  // BFIO_ROUTER_ENGINE_LINK_BARRIER_COST_H_
