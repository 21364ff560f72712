// The workers whose loads determine the level that all should keep.
//
// Purpose: these are the workers that accept new requests and hold at least half of the median load of the
// accepting ones. A draining worker has a falling load, and a worker below half the median has just joined.
// Threads: one (scratch memory). Deterministic. Cost: O(workers).
#ifndef BFIO_ROUTER_CORE_POLICY_LEVEL_WORKERS_H_
#define BFIO_ROUTER_CORE_POLICY_LEVEL_WORKERS_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "router/core/model/snapshot.h"
#include "router/core/solver/instance.h"

namespace bfio::core {

class LevelWorkers {
 public:
  // By rank; empty only when no worker accepts. Valid until the next call.
  const std::vector<WorkerIndex>& Find(absl::Span<const WorkerView> workers);

 private:
  std::vector<WorkerIndex> level_;
  std::vector<int64_t> loads_;
};

// Mean local time of the level workers if every slot that they can fill gets an item of this many tokens: the
// time that the integer program aims at for all workers. REQUIRES: a level worker.
double LevelTarget(const Instance& instance, absl::Span<const WorkerIndex> level, double item_tokens);

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_POLICY_LEVEL_WORKERS_H_
