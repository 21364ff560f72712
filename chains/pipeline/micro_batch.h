// A part of one step's rows on its way through a chain of servers, and its validation by a server.
//
// Purpose: the head cuts each step into micro-batches, so that the servers of its chain work on different
// ones at the same time. Rows carry their hidden state; positions and pages say where their keys and values
// belong. The head's page table rules all caches of the chain: pages have the same numbers everywhere. What
// comes from a neighbour is checked (CheckMicroBatch) before anything is computed with it: no message,
// however made, reads or writes outside of the chain's own cache. Threads: plain data and pure functions.
#ifndef BFIO_CHAINS_PIPELINE_MICRO_BATCH_H_
#define BFIO_CHAINS_PIPELINE_MICRO_BATCH_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "worker/engine/decode/decode_engine.h"
#include "worker/scheduler/step_plan.h"

namespace bfio::worker {

// Micro-batches of one chain under way at a time, at most: the bound of every queue of a chain.
inline constexpr int32_t kMaxInFlight = 64;
// Hidden state of one micro-batch, at most: a message of a chain stays below gRPC's limit with its page
// lists.
inline constexpr int64_t kMaxHiddenBytes = int64_t{16} << 20;

struct MicroBatch {
  // From 1 within the life of a chain, each by one more than the one before.
  uint64_t number = 0;
  // Rows, runs and pages. Token ids mean nothing beyond the head. logit_rows: whose hidden state the head
  // wants back. Empty on the way from the last server to the head.
  StepPlan plan;
  // [rows, hidden]; on the way back [logit_rows, hidden].
  std::vector<float> hidden;
};

// A chain's sizes, alike on all of its servers.
struct BatchBounds {
  // Width of the model.
  int64_t hidden = 0;
  // Rows of a micro-batch, and runs of a micro-batch: sequences.
  int64_t max_rows = 0;
  int64_t max_runs = 0;
  // Of each cache.
  int64_t pages = 0;
  int32_t page_tokens = 0;
};

// What an engine with these options takes.
BatchBounds BoundsOf(int64_t hidden, const DecodeOptions& options);

// INVALID_ARGUMENT, naming the field, unless it has 1 to max_rows rows, as many hidden states, at most
// max_runs runs that are whole, pages that exist, are no more than there are and hold all of the
// run's positions, and wanted rows that ascend, no more than runs.
absl::Status CheckMicroBatch(const MicroBatch& batch, const BatchBounds& bounds);

// Cuts a plan into at most `pieces` plans of about the same number of rows, in order; a run may be cut. The
// draws of the pieces, one after another, are the plan's. REQUIRES: pieces >= 1; the plan has rows.
std::vector<StepPlan> CutPlan(const StepPlan& plan, int64_t pieces);

// Rows of `hidden` that the plan draws for, one after another. REQUIRES: `hidden` has plan.rows() rows.
std::vector<float> WantedRows(const StepPlan& plan, absl::Span<const float> hidden);

}  // namespace bfio::worker

#endif  // BFIO_CHAINS_PIPELINE_MICRO_BATCH_H_
