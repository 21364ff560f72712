// Fits the cost of batches online: the fixed time, the slope and where it begins, and the costs of attention:
// of prompts to themselves, and of decodes to their context.
//
// Purpose: a BatchCost that predicts the time of batches of other sizes. Least squares of t = c + a max(0, x
// - b0) + k1 prefill_pairs + k2 decode_context for each of a few values of b0, of which the best is used. k1
// is 0 unless it explains the times significantly better, since it is multiplied by the squared lengths of
// prompts that may be much longer than those seen. The batch k batches ago has the weight (1 - 1 / memory)^k.
// A time of more than kCut times the fit's (a preempted step) is reduced to that. No coefficient is negative.
// Pure. Threads: belongs to its caller. Cost: some hundred nanoseconds per batch; allocates nothing.
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
  // The number of batches that a fit needs.
  static constexpr int64_t kMinBatches = 32;
  static constexpr std::array<int64_t, 6> kB0Tokens = {0, 16, 32, 64, 128, 256};

  // Batches after which the weight of an old one is 1/e; above 1.
  explicit BatchFit(double memory_batches = 4096) : forget_(1 - 1 / memory_batches) {}

  // Ignores a batch without tokens, or with a time that is not a positive number.
  void Add(const BatchLoad& load, double seconds);

  // Absent while the fit is undetermined: too few batches, or all of the same size.
  std::optional<BatchCost> cost() const;

 private:
  // A batch that takes more than this many times the fit's time counts as disturbed.
  static constexpr double kCut = 4;

  const double forget_;
  // By index in kB0Tokens: moments of (max(0, x - b0), prefill_pairs, decode_context, seconds).
  std::array<BasicMoments<4>, kB0Tokens.size()> moments_;
  int64_t batches_ = 0;
  mutable std::optional<BatchCost> cost_;
  mutable int64_t cost_at_ = -1;
};

}  // namespace bfio

#endif  // BFIO_COMMON_COST_BATCH_FIT_H_
