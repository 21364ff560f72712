// One step of the model on the CPU: from a plan's tokens to logits. The reference implementation that other
// engines are tested against, and an engine in its own right. All activations and sums are fp32. A row's
// logits depend only on its sequence's tokens, to the last bit (kernels.h). Several Forwards that each have a
// part of the blocks (RunHead, RunBlocks, Logits) give the same bits. Threads: used by one thread, which
// leads its own team.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "worker/engine/cpu/kernels.h"
#include "worker/engine/cpu/kv_cache.h"
#include "worker/engine/cpu/threads.h"
#include "worker/engine/cpu/weights.h"
#include "worker/scheduler/step_plan.h"

namespace bfio::worker::cpu {

class Forward {
 public:
  // `max_rows`, `max_draws`: the most rows and logit rows of a plan.
  Forward(std::shared_ptr<const Weights> weights, std::unique_ptr<KvCache> cache, const Kernels& kernels,
          int32_t threads, int64_t max_rows, int64_t max_draws);
  // For a part of the model. REQUIRES: the weights contain these blocks; the cache has as many layers.
  Forward(std::shared_ptr<const Weights> weights, const BlockRange& blocks, std::unique_ptr<KvCache> cache,
          const Kernels& kernels, int32_t threads, int64_t max_rows, int64_t max_draws);

  // Writes keys and values of all rows to the cache. The returned logits, [draws, vocab], are valid until the
  // next call. REQUIRES: tokens are in the vocabulary.
  absl::Span<const float> Run(const StepPlan& plan);

  // --- a part of the model; results are valid until the next call ---

  // Passes the plan's tokens through the embedding and the first blocks; returns hidden rows, [rows, hidden].
  // REQUIRES: the weights have the ends, and the blocks here begin with block 0.
  absl::Span<const float> RunHead(const StepPlan& plan);
  // Passes hidden rows through the blocks here. The plan's token ids are not used.
  absl::Span<const float> RunBlocks(const StepPlan& plan, absl::Span<const float> hidden);
  // Returns the logits, [rows, vocab], of hidden rows that have passed through all blocks. REQUIRES: the
  // weights have the ends; at most max_draws rows.
  absl::Span<const float> Logits(absl::Span<const float> hidden);

  const Weights& weights() const { return *weights_; }
  const KvCache& cache() const { return *cache_; }
  Threads& threads() { return threads_; }

 private:
  // Consecutive rows of one run that attend together.
  struct Piece {
    int32_t run;
    int32_t first_row;
    int32_t rows;
  };

  void Embed(const StepPlan& plan);
  void RunAllBlocks(const StepPlan& plan);
  void FillRotations(const StepPlan& plan);
  void CutPieces(const StepPlan& plan);
  // Prepares rows, rotations and pieces.
  void Begin(const StepPlan& plan);
  // The first half of a block, attention; leaves the MLP's input in normed_. `index` counts from the first
  // block here.
  void RunAttention(const StepPlan& plan, int64_t index);
  const Layer& layer(int64_t index) const { return weights_->block(blocks_.first + index); }
  void Project(const Layer& layer);
  void RotateAndStore(const StepPlan& plan, const Layer& layer, int64_t index);
  void Attend(const StepPlan& plan, int64_t index);
  // hidden_ += MLP(normed_).
  void RunMlp(const Layer& layer);
  // Of these rows.
  absl::Span<const float> LogitsOf(const float* hidden, absl::Span<const int32_t> rows);
  // normed_ = RMSNorm(hidden_).
  void Normalise(const std::vector<float>& weight);
  // Applies the q/k norm, if there is one, and the rotation to one head.
  void PrepareHead(float* head, const std::vector<float>& norm, int64_t row) const;
  void Multiply(const Matrix& matrix, const float* x, float* y, bool add, int64_t rows, int32_t thread) const;

  const std::shared_ptr<const Weights> weights_;
  const std::unique_ptr<KvCache> cache_;
  const Kernels& kernels_;
  const ModelConfig& config_;
  const BlockRange blocks_;
  // Radians per position.
  const std::vector<float> frequencies_;
  Threads threads_;
  int64_t rows_ = 0;

  // Activations, by row; allocated once.
  AlignedFloats hidden_, normed_, q_, k_, v_, attended_, gate_, up_, logits_;
  // [rows, head_dim / 2]
  std::vector<float> cos_, sin_;
  std::vector<Piece> pieces_;
  // By thread.
  std::vector<std::vector<float>> scratch_;
};

}  // namespace bfio::worker::cpu
