// One step's work, decided on the host, in flat arrays that a CPU engine reads and a GPU engine uploads. A
// row is one token to compute; a run is the consecutive rows of one sequence: one row for a decode, a chunk
// of the prompt for a prefill. Runs of one row come first. Plain data, reused from step to step, so that
// nothing is allocated once the arrays have grown. Threads: used by the step thread.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "worker/kv/page_table.h"

namespace bfio::worker {

struct StepPlan {
  // --- of the step, as in StepOutput (worker/engine/engine.h) ---

  int64_t load_tokens = 0;
  int64_t prefill_tokens = 0;

  // --- by row ---

  // [rows] The token at the row's position.
  std::vector<uint32_t> token_ids;
  // [rows] The token's position in its sequence: it attends to positions 0 .. positions[r].
  std::vector<int32_t> positions;
  // [rows] Index of the run that the row belongs to.
  std::vector<int32_t> row_runs;

  // --- by run ---

  // [runs + 1] Rows of run i: run_rows[i] .. run_rows[i + 1] - 1.
  std::vector<int32_t> run_rows;
  // [runs] The sequence's index in the page table.
  std::vector<SequenceIndex> sequences;
  // [runs + 1] The pages of run i are pages[run_pages[i]] .. pages[run_pages[i + 1] - 1]; position p is in
  // the (p / page_tokens)-th. They contain the tokens of earlier steps and have capacity for all rows of the
  // run.
  std::vector<int32_t> run_pages;
  // [run_pages[runs]]
  std::vector<PageId> pages;

  // --- by drawn token ---

  // [draws] Rows whose logits are needed, ascending: the last row of every run that reaches the last known
  // token of its sequence.
  std::vector<int32_t> logit_rows;

  int32_t rows() const { return static_cast<int32_t>(token_ids.size()); }
  int32_t runs() const { return static_cast<int32_t>(sequences.size()); }
  int32_t draws() const { return static_cast<int32_t>(logit_rows.size()); }

  // Removes all rows.
  void Clear();
  // Appends a run: `tokens` at consecutive positions from `first_position`, in `pages`.
  void AddRun(SequenceIndex sequence, int64_t first_position, absl::Span<const uint32_t> tokens,
              absl::Span<const PageId> pages, bool draws);
};

}  // namespace bfio::worker
