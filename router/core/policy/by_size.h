// Waiting requests in the order of their size, class by class.
//
// Purpose: what min_min and max_min share. Ownership: kept by a policy and reused between decisions.
// Threads: one.
#ifndef BFIO_ROUTER_CORE_POLICY_BY_SIZE_H_
#define BFIO_ROUTER_CORE_POLICY_BY_SIZE_H_

#include <cstdint>
#include <vector>

#include "router/core/model/free_capacity.h"

namespace bfio::core {

enum class SizeOrder { kSmallestFirst, kLargestFirst };

class BySize {
 public:
  // Offers all requests of the highest priority by size (ties: older first), then those of the next, each to
  // the worker that would finish its step first with it, until no slot is left. Cost: linear in the pool, and
  // (log pool + G) for each request offered.
  void Place(const Snapshot& snapshot, SizeOrder order, FreeCapacity& free, std::vector<Assignment>& plan);

 private:
  // Heap of waiting indices.
  std::vector<int32_t> heap_;
};

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_POLICY_BY_SIZE_H_
