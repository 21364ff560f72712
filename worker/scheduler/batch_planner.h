// What the next step of an engine contains: a scheduler, the token budget, and what moves it.
//
// Purpose: the part of an engine that has no model and no device, the same for the sim, CPU and CUDA engines.
// The budget is set at the start; a tuner may adapt it (budget_tuner.h), and the router may say up to which
// time ranks fill their steps with prompt tokens, the same for all (worker.proto, Plan.level_s): within the
// budget a step then has as many as end by that time, as the engine's own steps have cost.
//
// What an engine does otherwise than a scheduler alone: the budget keeps no decode out of a step under
// sarathi, nor out of one of decodes alone; and prompts get kMinPrefillRows however many decodes there are.
// Under orca prompts come first, and decodes wait where the budget ends. Steps have at most
// MaxRows(requests, token_budget) rows.
//
// Ownership: none of the requests. Threads: belongs to its caller. Pure: times are handed in.
#ifndef BFIO_WORKER_SCHEDULER_BATCH_PLANNER_H_
#define BFIO_WORKER_SCHEDULER_BATCH_PLANNER_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/cost/prompt_work.h"
#include "worker/scheduler/batch_scheduler.h"
#include "worker/scheduler/budget_tuner.h"

namespace bfio::worker {

struct BatchPlannerOptions {
  // A scheduler's name (batch_scheduler.h), and the order within its classes.
  std::string scheduler = "sarathi";
  BatchOrder order = BatchOrder::kFcfs;
  // Tokens of a step, at least 1; kUnbounded: no bound, so every prompt is computed whole in its first step.
  int64_t token_budget = 512;
  // Adapts the budget between 64 (or token_budget, if that is less) and token_budget; max_budget, slots and
  // prompt_gives_token are set here. Not for schedulers that take prompts whole, nor without a bound.
  std::optional<BudgetTunerOptions> adapt;
  // Of the engine: requests at once, and the longest of them, prompt and output.
  int64_t slots = BatchRoom::kUnbounded;
  int64_t max_sequence_tokens = BatchRoom::kUnbounded;
};

class BatchPlanner {
 public:
  // INVALID_ARGUMENT, naming the option. Where prompts are taken whole the budget must hold the longest
  // sequence: what a request has made is part of its prompt when it is placed again.
  static absl::StatusOr<BatchPlanner> Create(const BatchPlannerOptions& options);

  // Fills `batch` with the chunks of the next step, by place in `left`, in the order of admission; all are
  // residents. Depends on the requests, budget() and the level alone: asked twice it says the same.
  void Form(absl::Span<const BatchRequest> left, std::vector<Chunk>& batch);

  // Of the steps from now on; none: as the budget allows. Not read where prompts are taken whole.
  void SetLevel(const std::optional<PrefillLevel>& level) { level_ = level; }
  // Tokens of the next step at most.
  int64_t budget() const { return budget_; }
  const BatchScheduler& scheduler() const { return scheduler_; }
  // Takes every prompt in one piece.
  bool whole_prompts() const { return scheduler_.whole_prompts() || budget_ == BatchRoom::kUnbounded; }

  // --- for the tuner; nothing happens without one ---

  bool adapts() const { return tuner_.has_value(); }
  // A request came; `decode`: tokens it makes at most.
  void Arrive(int64_t id, double now_s, int64_t prefill, int64_t decode, const RequestObjectives& objectives);
  void End(int64_t id, int64_t decoded);
  // The step formed last, of `left`, took so long.
  void Took(absl::Span<const BatchRequest> left, absl::Span<const Chunk> batch, const BatchLoad& load,
            double seconds);
  // After it the engine waited for others so long.
  void Waited(double seconds);

 private:
  BatchPlanner(const BatchPlannerOptions& options, BatchScheduler scheduler);

  int64_t TokensBelowLevel(absl::Span<const BatchRequest> left);

  BatchScheduler scheduler_;
  std::optional<BudgetTuner> tuner_;
  int64_t budget_;
  std::optional<PrefillLevel> level_;
  // Scratch.
  std::vector<PromptLeft> prompts_;
};

}  // namespace bfio::worker

#endif  // BFIO_WORKER_SCHEDULER_BATCH_PLANNER_H_
