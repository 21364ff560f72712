// First come, first served: the oldest request goes to the worker with most free slots (ties: lowest index).
//
// Source: BF-IO paper, listing "FCFS" of section 6 (a worker's free slots are B - active, so with equal B
// this is join the shortest queue by count as well).
//
// Purpose: the baseline that other rules' waits are compared with; it uses no lengths. Threads: as Policy.
#ifndef BFIO_ROUTER_CORE_POLICY_FCFS_FCFS_H_
#define BFIO_ROUTER_CORE_POLICY_FCFS_FCFS_H_

#include <vector>

#include "router/core/model/free_capacity.h"
#include "router/core/policy/policy.h"

namespace bfio::core {

class FcfsPolicy final : public Policy {
 public:
  absl::string_view name() const override { return "fcfs"; }
  void Decide(const Snapshot& snapshot, Decision& decision) override;

 private:
  FreeCapacity free_;
};

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_POLICY_FCFS_FCFS_H_
