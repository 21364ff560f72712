// The workers whose loads determine the level that all should keep.
//
// Purpose: those that accept new requests and hold at least half of the median load of the accepting ones. A
// worker that drains has a falling load, and one below half the median has just joined.
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

// Mean local time of the level workers when every slot of theirs that can be taken has got an item of so many
// tokens: what the integer program is to keep all near. REQUIRES: a level worker.
double LevelTarget(const Instance& instance, absl::Span<const WorkerIndex> level, double item_tokens);

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_POLICY_LEVEL_WORKERS_H_
