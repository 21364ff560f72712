// Whether a run meets the overload condition of the BF-IO paper's theorems (Definition 1): whatever one
// prompt length is set aside, the pool still holds as many requests as there are free slots.
//
// Purpose: the theorems speak of overloaded runs, and what waits depends on the policy, so it is measured.
// Threads: none; one run owns it. Constant time per request and decision.
#ifndef BFIO_TOOLS_SIM_RUN_OVERLOAD_WATCH_H_
#define BFIO_TOOLS_SIM_RUN_OVERLOAD_WATCH_H_

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace bfio::sim {

class OverloadWatch {
 public:
  // A request of this prompt length begins to wait, and stops.
  void Add(int64_t prompt_tokens);
  // REQUIRES: one of that length waits.
  void Remove(int64_t prompt_tokens);

  // A counted decision about the requests that wait; without a free slot it does not count.
  void Decide(int64_t free_slots);

  // Of the counted decisions, those that met the condition; 1 when there was none.
  double share() const;

 private:
  // Waiting requests by prompt length, and lengths by how many requests of them wait.
  absl::flat_hash_map<int64_t, int64_t> waiting_;
  std::vector<int64_t> lengths_with_{0};
  // The most that wait of one length.
  int64_t most_ = 0;
  int64_t pool_ = 0;
  int64_t decisions_ = 0, met_ = 0;
};

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_RUN_OVERLOAD_WATCH_H_
