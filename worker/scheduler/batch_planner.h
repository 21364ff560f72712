// Decides what the next step of an engine contains, by a scheduler and a token budget, the same for the sim,
// CPU and CUDA engines. The router may also set a level, a step time up to which all ranks fill their steps
// with prompt tokens (worker.proto, Plan.level_s), according to the measured cost of the engine's own steps.
// Under sarathi, and in steps without prompts, the budget never excludes a decode, and prompts get
// kMinPrefillRows; under orca prompts come first, and decodes beyond the budget wait. Steps have at most
// MaxRows(requests, token_budget) rows. Does not own requests. Pure; belongs to its caller's thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/cost/prompt_work.h"
#include "worker/scheduler/batch_scheduler.h"

namespace bfio::worker {

struct BatchPlannerOptions {
  // The scheduler's name (batch_scheduler.h), and the order within its classes.
  std::string scheduler = "sarathi";
  BatchOrder order = BatchOrder::kFcfs;
  // The most tokens of a step, at least 1; kUnbounded: no bound, so every prompt is computed whole in its
  // first step.
  int64_t token_budget = 512;
  // The engine's limit of one request's prompt + output.
  int64_t max_sequence_tokens = BatchCapacity::kUnbounded;
};

class BatchPlanner {
 public:
  // INVALID_ARGUMENT, naming the option. If prompts are computed whole, the budget must hold the longest
  // sequence, because a request's generated tokens are part of its prompt when it is placed again.
  static absl::StatusOr<BatchPlanner> Create(const BatchPlannerOptions& options);

  // Fills `batch` with the chunks of the next step. Chunk::which is an index in `left`, which is in the order
  // of admission; all requests are residents. Depends only on the requests, budget() and the level, so a
  // second call gives the same result.
  void Form(absl::Span<const BatchRequest> left, std::vector<Chunk>& batch);

  // Sets the level of the steps from now on; absent: as the budget allows. Ignored if prompts are computed
  // whole.
  void SetLevel(const std::optional<PrefillLevel>& level) { level_ = level; }
  // Upper bound of the next step's tokens.
  int64_t budget() const { return budget_; }
  const BatchScheduler& scheduler() const { return scheduler_; }
  // Whether every prompt is computed whole in one step.
  bool whole_prompts() const { return scheduler_.whole_prompts() || budget_ == BatchCapacity::kUnbounded; }

 private:
  BatchPlanner(int64_t budget, BatchScheduler scheduler)
      : scheduler_(std::move(scheduler)), budget_(budget) {}

  int64_t TokensBelowLevel(absl::Span<const BatchRequest> left);

  BatchScheduler scheduler_;
  int64_t budget_;
  std::optional<PrefillLevel> level_;
  // Reused buffer.
  std::vector<PromptLeft> prompts_;
};

}  // namespace bfio::worker
