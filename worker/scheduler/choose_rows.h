// Batch formation of one step: which sequences run, and how much of whose prompt.
//
// Purpose: continuous batching with chunked prefill. Every sequence that has one token left to compute runs
// (a decode, or the last token of a prompt): each must make its token in each step, so the budget does not
// bind them. What the budget leaves goes to the prompts, the oldest first, cut where it ends. Prompts always
// get kMinPrefillRows: a full batch of decodes slows them, and does not starve them. Pure; the simulator may
// ask too.
#ifndef BFIO_WORKER_SCHEDULER_CHOOSE_ROWS_H_
#define BFIO_WORKER_SCHEDULER_CHOOSE_ROWS_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace bfio::worker {

// A whole tile of the CPU and GPU kernels' rows; not tuned.
inline constexpr int64_t kMinPrefillRows = 16;

// A piece of one sequence: its next `rows` tokens.
struct Chunk {
  // Which of the sequences asked about.
  int32_t which = 0;
  int32_t rows = 0;
};

// `pending[i]`: tokens of sequence i whose KV is not computed yet, at least 1; sequences in the order of
// admission. Fills `chunks` (cleared first): those with one row, then pieces of prompts, each in the order of
// `pending`. REQUIRES: step_tokens >= 1.
void ChooseRows(absl::Span<const int64_t> pending, int64_t step_tokens, std::vector<Chunk>& chunks);

// Rows that a step of at most `sequences` sequences can have.
int64_t MaxRows(int64_t sequences, int64_t step_tokens);

}  // namespace bfio::worker

#endif  // BFIO_WORKER_SCHEDULER_CHOOSE_ROWS_H_
