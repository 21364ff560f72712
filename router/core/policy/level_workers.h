// The workers whose loads determine the level that all should keep. Those that accept new requests and hold
// at least half of the median load of the accepting ones. A worker that drains does not count, because its
// load is falling; one below half the median has just joined. Threads: one (scratch memory). Deterministic.
// Cost: O(workers).
#pragma once

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

// Mean local time of the level workers when each of their usable free slots has received an item of
// `item_tokens` tokens. The integer program keeps all workers near this time. REQUIRES: `level` is not empty.
double LevelTarget(const Instance& instance, absl::Span<const WorkerIndex> level, double item_tokens);

}  // namespace bfio::core
