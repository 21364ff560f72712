// A step's inputs on the device, in one block of memory with the same layout on host and device. The host
// fills the block in pinned memory and one copy transfers it. Every array has a fixed offset for the engine's
// lifetime, so captured graphs may hold pointers; the longest array comes last, so that only its used part is
// copied. Host only, pure; tested without a GPU. Threads: plain data.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "worker/engine/cuda/attention_plan.h"
#include "worker/engine/cuda/kernels/row_args.h"
#include "worker/engine/cuda/kernels/sample_args.h"
#include "worker/engine/sampling/sampler.h"
#include "worker/scheduler/step_plan.h"

namespace bfio::worker::gpu {

// The numbers of rows that steps are padded to. A captured graph and a chosen matrix product fit one number
// of rows, so a step runs in the smallest bucket that holds it. Buckets are powers of two up to 64 (decode
// steps are bound by memory bandwidth, where padding costs nothing), and above that also the midpoints
// between them (steps with long prompts are compute-bound: at most a third is padding). Threads: immutable.
class RowBuckets {
 public:
  // The largest bucket is `max_rows`. REQUIRES: max_rows >= 1.
  explicit RowBuckets(int32_t max_rows);

  // Ascending.
  const std::vector<int32_t>& sizes() const { return sizes_; }
  int count() const { return static_cast<int>(sizes_.size()); }
  // Index of the smallest bucket that holds `rows`. REQUIRES: 0 <= rows <= max_rows.
  int Index(int32_t rows) const;

 private:
  std::vector<int32_t> sizes_;
};

struct StepLimits {
  int32_t rows = 0;
  int32_t draws = 0;
  // Pages of all sequences together.
  int64_t pages = 0;
  AttentionSizes attention;
};

// The capacity for end tokens is this many per draw of a step. End tokens beyond it are left out;
// Drawn::end_probability, which is only a hint, is then too small.
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
  // StepPlan::pages, followed by the end tokens.
  int32_t* numbers = nullptr;
};

class StepLayout {
 public:
  explicit StepLayout(const StepLimits& limits);

  // Size of the whole block, and of a block of which `numbers` numbers are used.
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

// Fills the block; returns how many of its bytes are used. REQUIRES: the step is within the layout's limits;
// `attention` is its plan; draws has plan.draws() elements, or none if this part does not draw.
int64_t FillStepInputs(const StepPlan& plan, const AttentionPlan& attention, absl::Span<const Draw> draws,
                       int64_t vocab, int32_t page_tokens, const StepLayout& layout, void* block);

// The same for a step that only draws from hidden rows: as many rows as draws, and no runs.
int64_t FillDrawInputs(absl::Span<const Draw> draws, int64_t vocab, const StepLayout& layout, void* block);

}  // namespace bfio::worker::gpu
