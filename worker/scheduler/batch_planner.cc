#include "worker/scheduler/batch_planner.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace bfio::worker {
namespace {

// With a smaller budget a step is mostly overhead; not tuned.
constexpr int64_t kLeastBudget = 64;

BudgetTunerOptions TunerOptions(const BatchPlannerOptions& options) {
  BudgetTunerOptions tuner = *options.adapt;
  tuner.max_budget = options.token_budget;
  tuner.min_budget = std::min(kLeastBudget, options.token_budget);
  tuner.slots = options.slots;
  tuner.prompt_gives_token = true;
  return tuner;
}

}  // namespace

absl::StatusOr<BatchPlanner> BatchPlanner::Create(const BatchPlannerOptions& options) {
  auto scheduler = BatchScheduler::Create(options.scheduler, options.order);
  if (!scheduler.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("scheduler: ", scheduler.status().message()));
  }
  if (options.adapt && scheduler->whole_prompts()) {
    return absl::InvalidArgumentError(absl::StrCat("budget_control: cannot be used with the scheduler ",
                                                   scheduler->name(),
                                                   ", which does not split prompts; use sarathi or orca"));
  }
  if (scheduler->whole_prompts() && options.token_budget < options.max_sequence_tokens) {
    return absl::InvalidArgumentError(
        absl::StrCat("scheduler: ", scheduler->name(),
                     " does not split prompts; token_budget must be at least max_sequence_tokens, ",
                     options.max_sequence_tokens, ", not ", options.token_budget));
  }
  return BatchPlanner(options, *std::move(scheduler));
}

BatchPlanner::BatchPlanner(const BatchPlannerOptions& options, BatchScheduler scheduler)
    : scheduler_(std::move(scheduler)), budget_(options.token_budget) {
  if (options.adapt) tuner_.emplace(TunerOptions(options), scheduler_);
}

void BatchPlanner::Form(absl::Span<const BatchRequest> left, std::vector<Chunk>& batch) {
  const int64_t decoding =
      std::count_if(left.begin(), left.end(), [](const BatchRequest& request) { return request.decoding(); });
  BatchCapacity capacity;
  if (whole_prompts()) {
    capacity.token_budget = std::max(budget_, decoding);
    capacity.prefill_tokens = budget_;
  } else {
    capacity.token_budget = std::max(budget_, decoding + kMinPrefillRows);
    capacity.prefill_tokens = std::max(budget_, kMinPrefillRows);
    if (level_) capacity.prefill_tokens = std::min(capacity.prefill_tokens, TokensBelowLevel(left));
  }
  scheduler_.Form(left, capacity, batch);
}

int64_t BatchPlanner::TokensBelowLevel(absl::Span<const BatchRequest> left) {
  prompts_.clear();
  RankWork work;
  work.cost = level_->cost;
  for (const BatchRequest& request : left) {
    if (request.prefill_left > 0) {
      prompts_.push_back({request.prefill_left, request.cached});
    } else if (request.decoding()) {
      ++work.decodes;
      work.decode_context += static_cast<double>(request.cached);
    }
  }
  work.prompts = prompts_;
  return TokensWithin(work, level_->seconds);
}

void BatchPlanner::Arrive(int64_t id, double now_s, int64_t prefill, int64_t decode,
                          const RequestObjectives& objectives) {
  if (tuner_) tuner_->Arrive(id, now_s, prefill, decode, objectives);
}

void BatchPlanner::End(int64_t id, int64_t decoded) {
  if (tuner_) tuner_->End(id, decoded);
}

void BatchPlanner::Waited(double seconds) {
  if (tuner_) tuner_->Waited(seconds);
}

void BatchPlanner::Took(absl::Span<const BatchRequest> left, absl::Span<const Chunk> batch,
                        const BatchLoad& load, double seconds) {
  if (!tuner_) return;
  int64_t backlog = 0;
  for (const BatchRequest& request : left) backlog += request.prefill_left;
  for (const Chunk& chunk : batch) {
    if (left[chunk.which].prefill_left > 0) backlog -= chunk.rows;
  }
  tuner_->Batch(load, seconds);
  budget_ = tuner_->UpdateBudget(backlog);
}

}  // namespace bfio::worker
