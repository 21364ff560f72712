// Min-min: of all waiting requests the one that can complete earliest somewhere, there; repeat.
//
// Source: Ibarra and Kim (1977), Braun et al. (2001); BF-IO paper, related work: i = argmin min_g (r_g +
// p_ig). Ready time r_g is the worker's local step time, p_ig what the request adds to it; p grows with s on
// every worker, so the choice is always the smallest request. Over a pool that never empties the large ones
// wait forever. No engine ships it.
//
// Purpose: baseline; selection by size, smallest first. Threads: as Policy.
#ifndef BFIO_ROUTER_CORE_POLICY_MIN_MIN_MIN_MIN_H_
#define BFIO_ROUTER_CORE_POLICY_MIN_MIN_MIN_MIN_H_

#include <vector>

#include "router/core/model/free_capacity.h"
#include "router/core/policy/by_size.h"
#include "router/core/policy/policy.h"

namespace bfio::core {

class MinMinPolicy final : public Policy {
 public:
  absl::string_view name() const override { return "min_min"; }
  void Decide(const Snapshot& snapshot, Decision& decision) override;

 private:
  FreeCapacity free_;
  BySize by_size_;
};

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_POLICY_MIN_MIN_MIN_MIN_H_
