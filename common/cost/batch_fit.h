// What batches cost, fitted while they are made: the floor, the slope and where it begins, and the context.
//
// Purpose: a BatchCost that predicts the time of batches of other sizes. Least squares of t = c + a
// max(0, x - b0) + k2 decode_context for each of a few b0, the best of which counts; a batch k ago weighs (1
// - 1 / memory)^k, one that takes several times what the fit says (a preempted step) is cut off there. No
// coefficient is negative. Pure. Threads: belongs to its caller. Cost: some hundred nanoseconds a batch;
// nothing is allocated.
#ifndef BFIO_COMMON_COST_BATCH_FIT_H_
#define BFIO_COMMON_COST_BATCH_FIT_H_

#include <array>
#include <cstdint>
#include <optional>

#include "common/cost/batch_time.h"
#include "common/cost/moments.h"

namespace bfio {

class BatchFit {
 public:
  // Batches that a fit needs.
  static constexpr int64_t kMinBatches = 32;
  static constexpr std::array<int64_t, 6> kB0Tokens = {0, 16, 32, 64, 128, 256};

  // Batches after which an old one counts 1/e; above 1.
  explicit BatchFit(double memory_batches = 4096) : forget_(1 - 1 / memory_batches) {}

  // One without tokens, or with a time that is no positive number, is not taken in.
  void Add(const BatchLoad& load, double seconds);

  // None while the fit is not determined: too few, or all of a size.
  std::optional<BatchCost> cost() const;

 private:
  // Beyond so many times the fit's time a batch was disturbed.
  static constexpr double kCut = 4;

  const double forget_;
  // By kB0Tokens: of (max(0, x - b0), decode_context, seconds).
  std::array<Moments, kB0Tokens.size()> moments_;
  int64_t batches_ = 0;
  mutable std::optional<BatchCost> cost_;
  mutable int64_t cost_at_ = -1;
};

}  // namespace bfio

#endif  // BFIO_COMMON_COST_BATCH_FIT_H_
