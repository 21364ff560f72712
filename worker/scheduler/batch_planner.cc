#include "worker/scheduler/batch_planner.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace bfio::worker {

absl::StatusOr<BatchPlanner> BatchPlanner::Create(const BatchPlannerOptions& options) {
  auto scheduler = BatchScheduler::Create(options.scheduler, options.order);
  if (!scheduler.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("scheduler: ", scheduler.status().message()));
  }
  if (scheduler->whole_prompts() && options.token_budget < options.max_sequence_tokens) {
    return absl::InvalidArgumentError(
        absl::StrCat("scheduler: ", scheduler->name(),
                     " does not split prompts; token_budget must be at least max_sequence_tokens, ",
                     options.max_sequence_tokens, ", not ", options.token_budget));
  }
  return BatchPlanner(options.token_budget, *std::move(scheduler));
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

}  // namespace bfio::worker
