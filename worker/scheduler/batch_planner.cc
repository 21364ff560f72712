#include "worker/scheduler/batch_planner.h"

#include <algorithm>
#include <tuple>

namespace bfio::worker {

void BatchPlanner::Form(absl::Span<const BatchRequest> left, std::vector<Chunk>& batch) {
  batch.clear();
  order_.clear();
  for (size_t i = 0; i < left.size(); ++i) {
    if (left[i].decoding()) batch.push_back({static_cast<int32_t>(i), 1});
    if (left[i].prefill_left > 0) order_.push_back(static_cast<int32_t>(i));
  }
  int64_t tokens = PromptTokens(left, static_cast<int64_t>(batch.size()));
  const auto key = [&](int32_t i) {
    using Key = std::tuple<bool, int64_t, int64_t>;
    if (left[i].passed_over >= kPatienceSteps) return Key(false, 0, 0);
    return Key(true, ~left[i].priority, left[i].senior_step);
  };
  std::stable_sort(order_.begin(), order_.end(), [&](int32_t a, int32_t b) { return key(a) < key(b); });
  for (const int32_t i : order_) {
    if (tokens == 0) break;
    const int64_t rows = std::min(left[i].prefill_left, tokens);
    batch.push_back({i, static_cast<int32_t>(rows)});
    tokens -= rows;
  }
}

int64_t BatchPlanner::PromptTokens(absl::Span<const BatchRequest> left, int64_t decodes) {
  if (whole_prompts()) return kUnbounded;
  const int64_t tokens = std::max(budget_ - decodes, kMinPrefillRows);
  return level_ ? std::min(tokens, TokensBelowLevel(left)) : tokens;
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
