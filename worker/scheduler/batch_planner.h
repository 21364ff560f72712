// Decides what the next step of an engine contains, the same for the sim, CPU and CUDA engines: one decode of
// every decoding request, then prompt tokens up to the token budget, the last chunk cut where it ends
// (chunked prefill, Sarathi). Without a level the step is work conserving: it contains min(budget, available)
// tokens, which makes the engine throughput-optimal ("Throughput-Optimal Scheduling Algorithms for LLM
// Inference and AI Agents"). The budget never excludes a decode, and prompts get kMinPrefillRows. Prompts are
// in the order of the router's pool: priority, then the longest wait, which for an agent's call counts from
// the agent's arrival. The router may also set a level, a step time up to which all ranks fill their steps
// with prompt tokens (worker.proto, Plan.level_s), according to the measured cost of the engine's own steps.
// A step has at most MaxRows(requests, token_budget) rows. Does not own requests. Pure; belongs to its
// caller's thread.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "common/cost/prompt_work.h"
#include "worker/scheduler/batch.h"

namespace bfio::worker {

class BatchPlanner {
 public:
  static constexpr int64_t kUnbounded = std::numeric_limits<int64_t>::max();

  // `token_budget`: the most tokens of a step, at least 1; kUnbounded: every prompt is computed whole in its
  // first step.
  explicit BatchPlanner(int64_t token_budget) : budget_(token_budget) {}

  // Fills `batch` with the chunks of the next step. Chunk::which is an index in `left`, which is in the order
  // of admission; ties are in that order. Depends only on the requests, budget() and the level, so a second
  // call gives the same result.
  void Form(absl::Span<const BatchRequest> left, std::vector<Chunk>& batch);

  // Sets the level of the steps from now on; absent: as the budget allows. Ignored if prompts are computed
  // whole.
  void SetLevel(const std::optional<PrefillLevel>& level) { level_ = level; }
  // Upper bound of the next step's tokens.
  int64_t budget() const { return budget_; }
  // Whether every prompt is computed whole in one step.
  bool whole_prompts() const { return budget_ == kUnbounded; }

 private:
  int64_t PromptTokens(absl::Span<const BatchRequest> left, int64_t decodes);
  int64_t TokensBelowLevel(absl::Span<const BatchRequest> left);

  int64_t budget_;
  std::optional<PrefillLevel> level_;
  // Reused buffers.
  std::vector<PromptLeft> prompts_;
  std::vector<int32_t> order_;
};

// Updates passed_over of `requests` after a step.
template <class Request>
void CountPassedOver(absl::Span<const Chunk> batch, std::vector<Request>& requests) {
  for (Request& request : requests) ++request.passed_over;
  for (const Chunk& chunk : batch) requests[chunk.which].passed_over = 0;
}

}  // namespace bfio::worker
