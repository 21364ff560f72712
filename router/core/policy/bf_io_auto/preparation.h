// Workers that make room for a request too large for any gap.
//
// Purpose: completions open gaps of about the size of what has completed. A request much larger than that
// cannot enter without a worker far above the rest, and every token of that costs the G - 1 others until the
// worker has come down again; a worker below the rest costs only itself. So one of the least loaded workers
// expects the request: it is credited with part of the excess now, so that the program gives it small
// requests and it sinks; the part grows to the whole as the request's turn comes (turns.h), and then the
// request closes an ordinary gap.
//
// The size of a gap and how fast a worker can sink are learnt from the loads of successive snapshots, in
// tokens. Threads: one. Cost: O(waiting + G log G) per decision.
#ifndef BFIO_ROUTER_CORE_POLICY_BF_IO_AUTO_PREPARATION_H_
#define BFIO_ROUTER_CORE_POLICY_BF_IO_AUTO_PREPARATION_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "router/core/model/snapshot.h"
#include "router/core/policy/bf_io_auto/turns.h"
#include "router/core/policy/pool_scale.h"
#include "router/core/solver/instance.h"

namespace bfio::core {

class Preparation {
 public:
  // Learns what has completed since the last plan.
  void Observe(const Snapshot& snapshot);

  // Sets home and credit of the items that are expected, and credits their workers. Only `level` workers
  // prepare. `seats`: requests admitted per decision.
  void Apply(const Snapshot& snapshot, absl::Span<const Turns::Turn> turns, const PoolScale& scale,
             double seats, absl::Span<const WorkerIndex> level, Instance& instance);

  // The plan that was made for the snapshot.
  void Remember(const Snapshot& snapshot, absl::Span<const Assignment> plan);

 private:
  struct Giant {
    double credit;
    int32_t item;
  };

  // Load and requests of each worker after the last plan, and its step.
  struct After {
    int64_t load;
    int64_t active;
  };
  std::vector<After> after_;
  int64_t after_step_ = 0;
  // Mean load that a completion takes away, tokens; 0 before the first.
  double gap_ = 0;
  // Scratch.
  std::vector<Giant> giants_;
  std::vector<WorkerIndex> lowest_;
  std::vector<int64_t> sizes_;
};

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_POLICY_BF_IO_AUTO_PREPARATION_H_
