// A part of one step's rows on its way through a chain of servers, and its validation by a server. The head
// divides each step into micro-batches, so that the servers of its chain work on different ones at the same
// time. Rows carry their hidden state; positions and pages say where their keys and values belong. The head's
// page table controls all caches of the chain: pages have the same numbers on all servers. A micro-batch from
// a neighbour is checked (CheckMicroBatch) before it is used: no message can cause reads or writes outside of
// the chain's own cache. Threads: plain data and pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "worker/engine/decode/decode_engine.h"
#include "worker/scheduler/step_plan.h"

namespace bfio::worker {

// Upper bound of a chain's micro-batches in flight, and so of every queue of a chain.
inline constexpr int32_t kMaxInFlight = 64;
// Upper bound of one micro-batch's hidden state in bytes, so that a message with its page lists stays below
// gRPC's limit.
inline constexpr int64_t kMaxHiddenBytes = int64_t{16} << 20;

struct MicroBatch {
  // Numbered from 1 within a chain's lifetime, without gaps.
  uint64_t number = 0;
  // Rows, runs and pages. Token ids are used only on the head. logit_rows: the rows whose hidden state the
  // head needs back. Empty on the way from the last server to the head.
  StepPlan plan;
  // [rows, hidden]; on the way back to the head [logit_rows, hidden].
  std::vector<float> hidden;
};

// A chain's sizes, equal on all of its servers.
struct BatchBounds {
  // Width of a hidden row.
  int64_t hidden = 0;
  // Upper bounds of a micro-batch's rows, and of its runs (sequences).
  int64_t max_rows = 0;
  int64_t max_runs = 0;
  // Pages of each server's cache.
  int64_t pages = 0;
  int32_t page_tokens = 0;
};

// The bounds of an engine with these options.
BatchBounds BoundsOf(int64_t hidden, const DecodeOptions& options);

// INVALID_ARGUMENT, naming the field, unless the batch has 1 to max_rows rows and as many hidden states; at
// most max_runs complete runs; existing pages, no more in total than the cache has and enough for the
// positions of each run; and ascending wanted rows, no more than runs.
absl::Status CheckMicroBatch(const MicroBatch& batch, const BatchBounds& bounds);

// Divides a plan into at most `pieces` plans with about equal numbers of rows, in order; a run may be
// divided. The concatenated draws of the pieces are the plan's. REQUIRES: pieces >= 1; the plan has rows.
std::vector<StepPlan> CutPlan(const StepPlan& plan, int64_t pieces);

// The rows of `hidden` that the plan draws from, concatenated. REQUIRES: `hidden` has plan.rows() rows.
std::vector<float> WantedRows(const StepPlan& plan, absl::Span<const float> hidden);

}  // namespace bfio::worker
