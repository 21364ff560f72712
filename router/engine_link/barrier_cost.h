// The cost of steps of ranks that meet in a barrier inside their engines, fitted from outside.
//
// Purpose: a step takes as long as the slowest rank's batch, so its time depends on that batch alone. The
// batches of one step are gathered over the ranks, and the one that should take longest, by the fit so far,
// goes into the fit with the step's time. Pure. Threads: one. Tokens, seconds.
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
  // A rank has ended a step with that batch. A rank's second batch begins the next step. `rank`: any number
  // that is its own.
  void Add(uint64_t rank, const BatchLoad& batch, absl::Duration step);

  // None until the steps determine it.
  std::optional<BatchCost> cost() const { return fit_.cost(); }
  // Changes whenever the cost has changed enough to report it again.
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
  BatchFit fit_;
};

}  // namespace bfio::router

#endif  // BFIO_ROUTER_ENGINE_LINK_BARRIER_COST_H_
