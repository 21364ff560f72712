// Whether a run meets the overload condition of the BF-IO paper's theorems (Definition 1): without the
// requests of any one prompt length, the pool still has at least as many requests as there are free slots.
//
// Purpose: the theorems hold for overloaded runs. Which requests wait depends on the policy, so the condition
// is measured. Threads: none; one run owns it. Constant time per request and decision.
#ifndef BFIO_TOOLS_SIM_RUN_OVERLOAD_WATCH_H_
#define BFIO_TOOLS_SIM_RUN_OVERLOAD_WATCH_H_

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace bfio::sim {

class OverloadWatch {
 public:
  // A request with this prompt length starts to wait, or stops waiting.
  void Add(int64_t prompt_tokens);
  // REQUIRES: a request of this length waits.
  void Remove(int64_t prompt_tokens);

  // Counts a decision about the waiting requests, unless there is no free slot.
  void Decide(int64_t free_slots);

  // Share of the counted decisions that met the condition; 1 when there was none.
  double share() const;

 private:
  // Number of waiting requests by prompt length, and number of lengths by their number of waiting requests.
  absl::flat_hash_map<int64_t, int64_t> waiting_;
  std::vector<int64_t> lengths_with_{0};
  // The largest number of waiting requests of one length.
  int64_t most_ = 0;
  int64_t pool_ = 0;
  int64_t decisions_ = 0, met_ = 0;
};

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_RUN_OVERLOAD_WATCH_H_
