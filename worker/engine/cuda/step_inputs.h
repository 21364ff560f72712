// What a step needs on the device, in one block of memory: laid out alike on the host and on the device.
//
// Purpose: the host fills the block in pinned memory and one copy brings it over. Every array has its place
// for the engine's life, so captured graphs may hold pointers; the longest array comes last, so that the copy
// ends with what the step uses of it. Host only, pure; tested without a GPU. Threads: plain data.
#ifndef BFIO_WORKER_ENGINE_CUDA_STEP_INPUTS_H_
#define BFIO_WORKER_ENGINE_CUDA_STEP_INPUTS_H_

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "worker/engine/cuda/attention_plan.h"
#include "worker/engine/cuda/kernels/row_args.h"
#include "worker/engine/cuda/kernels/sample_args.h"
#include "worker/engine/sampling/sampler.h"
#include "worker/scheduler/step_plan.h"

namespace bfio::worker::gpu {

struct StepLimits {
  int32_t rows = 0;
  int32_t draws = 0;
  // Pages of all sequences together.
  int64_t pages = 0;
  AttentionSizes attention;
};

// Of a step at most. Tokens that end sequences beyond the capacity of the step's draws are left out: the
// end's probability, which is a hint, is then less than it is.
inline constexpr int64_t kEndsPerDraw = 64;

// Pointers into such a block.
struct StepInputs {
  StepCounts* counts = nullptr;
  AttentionCounts* attention_counts = nullptr;
  // [rows]
  uint32_t* token_ids = nullptr;
  int32_t* positions = nullptr;
  int32_t* row_pages = nullptr;
  // [draws]
  int32_t* logit_rows = nullptr;
  DrawParams* draws = nullptr;
  AttentionCombine* combines = nullptr;
  AttentionItem* long_items = nullptr;
  AttentionItem* short_items = nullptr;
  // StepPlan::pages, and behind them the tokens that end sequences.
  int32_t* numbers = nullptr;
};

class StepLayout {
 public:
  explicit StepLayout(const StepLimits& limits);

  // Of the whole block, and of one of whose numbers so many are used.
  int64_t bytes() const { return BytesWith(number_limit_); }
  int64_t BytesWith(int64_t numbers) const {
    return numbers_ + numbers * static_cast<int64_t>(sizeof(int32_t));
  }
  int64_t number_limit() const { return number_limit_; }
  // `block` is aligned to 16 bytes.
  StepInputs At(void* block) const;

 private:
  // Offsets in bytes.
  int64_t counts_, attention_counts_, token_ids_, positions_, row_pages_, logit_rows_, draws_, combines_,
      long_items_, short_items_, numbers_;
  int64_t number_limit_;
};

// Fills the block in; returns how many of its bytes are used. REQUIRES: the step is within the layout's
// limits; `attention` is its plan; draws has plan.draws() elements, or none where none is made here.
int64_t FillStepInputs(const StepPlan& plan, const AttentionPlan& attention, absl::Span<const Draw> draws,
                       int64_t vocab, int32_t page_tokens, const StepLayout& layout, void* block);

// The same of a step that draws alone, from hidden rows: as many rows as draws, and no runs.
int64_t FillDrawInputs(absl::Span<const Draw> draws, int64_t vocab, const StepLayout& layout, void* block);

}  // namespace bfio::worker::gpu

#endif  // BFIO_WORKER_ENGINE_CUDA_STEP_INPUTS_H_
