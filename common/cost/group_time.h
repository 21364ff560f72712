// The time of a step of ranks that meet in a collective, such as the experts of a model that all ranks share.
// Engines with expert parallelism run all ranks in one mode (read in vLLM 0.32, v1/worker/dp_utils.py):
//
//   decodes only                 the full CUDA graph; every rank has as many rows as the rank with most
//   some rank has a prompt       piecewise graphs, slower for all ranks by prompt_s; padded as above
//   some rank is above S rows    no graph, slower for all ranks by eager_s; no rank is padded
//
// So a step takes
//
//   C + A max(0, rows - B0) + max_g (K1 pairs_g + K2 context_g) + E [some prompt] + E' [some rank above S]
//
// with rows = those of the rank with most if padded, otherwise each rank's own, inside the maximum. Pure.
// Tokens in, seconds out. Any thread.
#pragma once

#include <algorithm>
#include <cstdint>

#include "absl/types/span.h"
#include "common/cost/batch_time.h"

namespace bfio {

// What the batches of all ranks decide for each of them.
struct StepMode {
  // Rows that every rank has at least; 0: ranks are not padded.
  int64_t padded_rows = 0;
  // Whether E and E' apply, and their sum.
  bool prompts = false, eager = false;
  double extra_s = 0;
};

// What a step costs all ranks beside their batches.
struct GroupTerms {
  // Rows are padded to the rank with most, as long as no rank has more than captured_rows (S).
  bool padded = false;
  // vLLM's largest captured size by default.
  int64_t captured_rows = 512;
  // E and E', seconds.
  double prompt_s = 0;
  double eager_s = 0;

  bool operator==(const GroupTerms&) const = default;

  StepMode ModeOf(absl::Span<const BatchLoad> ranks) const {
    StepMode mode;
    int64_t most = 0;
    for (const BatchLoad& rank : ranks) {
      most = std::max(most, rank.tokens);
      mode.prompts = mode.prompts || rank.prefill_pairs > 0;
    }
    mode.eager = most > captured_rows;
    if (padded && !mode.eager) mode.padded_rows = most;
    mode.extra_s = (mode.prompts ? prompt_s : 0) + (mode.eager ? eager_s : 0);
    return mode;
  }
};

struct GroupCost {
  // A rank's own batch.
  BatchCost batch;
  GroupTerms terms;

  // The time of one rank's batch in that mode; 0 without a batch.
  double RankSeconds(BatchLoad rank, const StepMode& mode) const {
    if (rank.tokens <= 0) return 0;
    rank.tokens = std::max(rank.tokens, mode.padded_rows);
    return batch.Seconds(rank) + mode.extra_s;
  }

  double Seconds(absl::Span<const BatchLoad> ranks) const {
    const StepMode mode = terms.ModeOf(ranks);
    double seconds = 0;
    for (const BatchLoad& rank : ranks) seconds = std::max(seconds, RankSeconds(rank, mode));
    return seconds;
  }
};

}  // namespace bfio
