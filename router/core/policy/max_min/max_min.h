// Max-min: of all waiting requests the one whose earliest completion is latest, to where it completes
// earliest; repeat.
//
// Source: Ibarra and Kim (1977), Braun et al. (2001), as a companion of min_min in the BF-IO paper's related
// work. Completion grows with s on every worker, so the choice is always the largest request of the whole
// pool (lpt chooses among the oldest). Over a pool that never empties the small ones wait forever.
//
// Purpose: baseline; selection by size, largest first. Threads: as Policy.
#ifndef BFIO_ROUTER_CORE_POLICY_MAX_MIN_MAX_MIN_H_
#define BFIO_ROUTER_CORE_POLICY_MAX_MIN_MAX_MIN_H_

#include <vector>

#include "router/core/model/free_capacity.h"
#include "router/core/policy/by_size.h"
#include "router/core/policy/policy.h"

namespace bfio::core {

class MaxMinPolicy final : public Policy {
 public:
  absl::string_view name() const override { return "max_min"; }
  void Decide(const Snapshot& snapshot, Decision& decision) override;

 private:
  FreeCapacity free_;
  BySize by_size_;
};

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_POLICY_MAX_MIN_MAX_MIN_H_
