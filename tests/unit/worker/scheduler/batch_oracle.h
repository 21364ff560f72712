// The definition of every scheduler's batch, computed token by token.
#pragma once

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "worker/scheduler/batch_scheduler.h"

namespace bfio::worker {

inline bool TakesWholePrompts(const std::string& scheduler) {
  return scheduler == "vllm_v0" || scheduler == "faster_transformer";
}

// How many tokens each request gets: they are given one at a time, each to the first request in line that may
// have one more; prompts that are taken whole get all of theirs at once.
inline std::vector<int64_t> ExpectedBatch(const std::string& scheduler, BatchOrder order,
                                          const std::vector<BatchRequest>& requests, BatchCapacity capacity) {
  std::vector<int32_t> line(requests.size());
  std::iota(line.begin(), line.end(), 0);
  std::stable_sort(line.begin(), line.end(), [&](int32_t a, int32_t b) {
    const BatchRequest &x = requests[a], &y = requests[b];
    if (order == BatchOrder::kFcfs) return false;
    const auto overdue = [](const BatchRequest& r) {
      return r.resident && r.passed_over >= kPatienceBatches;
    };
    if (overdue(x) || overdue(y)) return overdue(x) && !overdue(y);
    if (order == BatchOrder::kShortest)
      return x.prefill_left + x.decode_left < y.prefill_left + y.decode_left;
    if (order == BatchOrder::kPriority || x.priority != y.priority) return x.priority > y.priority;
    return x.senior_step < y.senior_step;
  });
  std::vector<int64_t> given(requests.size(), 0);
  bool prompt_waits = false;
  // Gives `whole` tokens, or one, to the first in line. Only the first of those without slot or KV is looked
  // at: no later one overtakes it.
  const auto give = [&](bool to_decodes, bool whole) {
    bool blocked = false;
    const int64_t most =
        to_decodes ? capacity.token_budget : std::min(capacity.token_budget, capacity.prefill_tokens);
    if (most == 0) return false;
    for (const int32_t i : line) {
      const BatchRequest& request = requests[i];
      const bool starts = !request.resident && given[i] == 0;
      if (request.available() == given[i] || request.decoding() != to_decodes) continue;
      if (starts)
        blocked = blocked || capacity.free_slots == 0 || capacity.free_kv_tokens < request.kv_tokens;
      if (starts && blocked) continue;
      const int64_t tokens = whole ? request.prefill_left : 1;
      prompt_waits = prompt_waits || !to_decodes;
      if (tokens > most) return false;
      if (starts) --capacity.free_slots, capacity.free_kv_tokens -= request.kv_tokens;
      given[i] += tokens;
      capacity.token_budget -= tokens;
      if (!to_decodes) capacity.prefill_tokens -= tokens;
      return true;
    }
    return false;
  };
  const bool decoding = std::any_of(requests.begin(), requests.end(),
                                    [](const BatchRequest& request) { return request.decoding(); });
  if (TakesWholePrompts(scheduler)) {
    while ((scheduler == "vllm_v0" || !decoding) && give(false, true)) continue;
    while (!prompt_waits && give(true, false)) continue;
  } else {
    const bool decodes_first = scheduler == "sarathi";
    while (give(decodes_first, false) || give(!decodes_first, false)) continue;
  }
  return given;
}

inline std::vector<int64_t> TokensOf(const std::vector<Chunk>& batch, size_t requests) {
  std::vector<int64_t> given(requests, 0);
  for (const Chunk& chunk : batch) given.at(chunk.which) += chunk.rows;
  return given;
}

// Takes a batch's tokens off what is left.
inline void Apply(const std::vector<Chunk>& batch, std::vector<BatchRequest>& requests) {
  for (const Chunk& chunk : batch) {
    BatchRequest& request = requests[chunk.which];
    request.resident = true;
    (request.prefill_left > 0 ? request.prefill_left : request.decode_left) -= chunk.rows;
  }
}

}  // namespace bfio::worker
