#include "worker/scheduler/batch_check.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace bfio::worker {
namespace {

template <typename... Parts>
absl::Status Broken(const Parts&... parts) {
  return absl::FailedPreconditionError(absl::StrCat(parts...));
}

}  // namespace

int64_t AvailableTokens(absl::Span<const BatchRequest> requests, const BatchCapacity& capacity,
                        BatchOrder order) {
  std::vector<int32_t> sorted;
  SortRequests(requests, order, sorted);
  int64_t prompts = 0, decodes = 0, slots = capacity.free_slots, kv = capacity.free_kv_tokens;
  bool held_back = false;
  for (size_t i = 0; i < requests.size(); ++i) {
    const BatchRequest& request = requests[sorted.empty() ? i : static_cast<size_t>(sorted[i])];
    if (request.available() == 0) continue;
    if (!request.resident) {
      held_back = held_back || slots == 0 || request.kv_tokens > kv;
      if (held_back) continue;
      --slots;
      kv -= request.kv_tokens;
    }
    (request.decoding() ? decodes : prompts) += request.available();
  }
  return decodes + std::min(prompts, capacity.prefill_tokens);
}

int64_t BatchTokens(absl::Span<const Chunk> batch) {
  int64_t tokens = 0;
  for (const Chunk& chunk : batch) tokens += chunk.rows;
  return tokens;
}

absl::Status CheckBatch(absl::Span<const BatchRequest> requests, const BatchCapacity& capacity,
                        absl::Span<const Chunk> batch) {
  std::vector<char> seen(requests.size(), 0);
  int64_t slots = 0, kv = 0, prompts = 0;
  for (const Chunk& chunk : batch) {
    if (chunk.which < 0 || static_cast<size_t>(chunk.which) >= requests.size()) {
      return Broken("the batch has an unknown request ", chunk.which);
    }
    if (seen[chunk.which]++ != 0) return Broken("request ", chunk.which, " is in the batch twice");
    const BatchRequest& request = requests[chunk.which];
    if (chunk.rows < 1 || chunk.rows > request.available()) {
      return Broken("request ", chunk.which, " gets ", chunk.rows, " tokens, but the available number is ",
                    request.available());
    }
    if (!request.decoding()) prompts += chunk.rows;
    if (request.resident) continue;
    ++slots;
    kv += request.kv_tokens;
  }
  if (BatchTokens(batch) > capacity.token_budget) {
    return Broken(BatchTokens(batch), " tokens exceed the budget of ", capacity.token_budget);
  }
  if (prompts > capacity.prefill_tokens) {
    return Broken(prompts, " prompt tokens exceed the ", capacity.prefill_tokens, " allowed");
  }
  if (slots > capacity.free_slots)
    return Broken(slots, " starting requests exceed the free slots, ", capacity.free_slots);
  if (kv > capacity.free_kv_tokens)
    return Broken(kv, " KV tokens exceed the free ones, ", capacity.free_kv_tokens);
  return absl::OkStatus();
}

absl::Status CheckWorkConservation(absl::Span<const BatchRequest> requests, const BatchCapacity& capacity,
                                   BatchOrder order, absl::Span<const Chunk> batch) {
  const int64_t available = AvailableTokens(requests, capacity, order), tokens = BatchTokens(batch);
  if (tokens == std::min(capacity.token_budget, available)) return absl::OkStatus();
  return Broken("a batch of ", tokens, " tokens where ", available, " are available and the budget is ",
                capacity.token_budget);
}

}  // namespace bfio::worker
