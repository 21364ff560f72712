// Workers reserved for requests that are too large for any gap. Completions open gaps of about the size of
// the completed requests. A request much larger than that cannot enter without raising a worker far above the
// rest, and the G - 1 others wait for every token of the excess until the worker's load has fallen again. A
// worker below the rest delays no other. So one of the least loaded workers is reserved for the request: part
// of the excess counts as its load in advance (precounted_tokens), so it gets small requests and its load
// falls. The part grows to the whole as the request becomes overdue (urgency.h). Then the request fits an
// ordinary gap.
//
// The size of a gap and how fast a worker's load can fall are learnt from the loads of successive snapshots,
// in tokens. Threads: one. Cost: O(waiting + G log G) per decision.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "router/core/model/snapshot.h"
#include "router/core/policy/pool_scale.h"
#include "router/core/solver/instance.h"

namespace bfio::core {

class OversizedRequests {
 public:
  // Learns the sizes of the requests that completed since the last plan.
  void Observe(const Snapshot& snapshot);

  // Sets reserved_worker and precounted_tokens of oversized items, and precounts them. Only `level` workers
  // are reserved. `slacks`: steps until each request is overdue (urgency.h). `admissions`: requests admitted
  // per decision.
  void Apply(const Snapshot& snapshot, absl::Span<const double> slacks, const PoolScale& scale,
             double admissions, absl::Span<const WorkerIndex> level, Instance& instance);

  // Mean load that a completion removes, tokens; 0 before the first completion.
  double completed_tokens() const { return gap_; }

  // Notes the plan that was made for the snapshot.
  void Remember(const Snapshot& snapshot, absl::Span<const Assignment> plan);

 private:
  struct Candidate {
    double precounted_tokens;
    int32_t item;
  };

  // Load and requests of each worker after the last plan, and that plan's step.
  struct After {
    int64_t load;
    int64_t active;
  };
  std::vector<After> after_;
  int64_t after_step_ = 0;
  double gap_ = 0;
  // Scratch.
  std::vector<Candidate> candidates_;
  std::vector<WorkerIndex> lowest_;
  std::vector<int64_t> sizes_;
};

}  // namespace bfio::core
