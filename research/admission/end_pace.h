// Which requests would end in a wave: the pace of mc_sf_paced.
//
// Purpose: shortest-first fills memory in waves, because similar requests that start together end together,
// and until then the memory reserved for their future tokens is unused. M tokens support at most r = M / (s
// (o + 1) + o (o + 1) / 2) requests of s prompt and o output tokens per round in the long run. So of similar
// requests (total and output within a fifth) at most r n and a part of one may end in any n rounds, for n up
// to a quarter of their length. Further requests wait, and longer ones may overtake them; requests of mixed
// lengths are rarely delayed. The pace applies only while more than half the memory is reserved. Not in the
// paper. Not thread-safe.
#pragma once

#include <cstdint>
#include <set>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "research/admission/admission_rule.h"

namespace bfio::sim {

class EndPace {
 public:
  // The request now ends at `last`, with `total` tokens, `output` of them generated. Replaces earlier values.
  void Set(RequestId id, int64_t last, int64_t total, int64_t output);
  void Remove(RequestId id);

  // Whether too many similar requests would end together if one more, which ends at `last` with these tokens,
  // started. `used`: the token-steps that requests actually take, as a share of those predicted.
  bool EndsTogether(int64_t last, int64_t prompt, int64_t output, int64_t memory, double used = 1) const;

 private:
  struct Entry {
    int64_t last = 0, total = 0, output = 0;
  };
  absl::flat_hash_map<RequestId, Entry> entries_;
  std::set<std::pair<int64_t, RequestId>> ends_;
};

// Token-steps of a request of s prompt and o output tokens: s (o + 1) + o (o + 1) / 2.
double TokenSteps(int64_t prompt, int64_t output);

}  // namespace bfio::sim
