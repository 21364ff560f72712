// First come, first served, filling the workers by index: the oldest request goes to the first worker that
// has free capacity.
//
// Source: FCFS of the BF-IO paper as its text and the authors' simulator have it; its listing takes the
// worker with most free slots (fcfs). With every slot taken the two do not differ significantly; below that,
// this one puts all requests on the first workers.
//
// Purpose: baseline; the authors' FCFS as they run it. Threads: as Policy.
#ifndef BFIO_ROUTER_CORE_POLICY_FCFS_FILL_FCFS_FILL_H_
#define BFIO_ROUTER_CORE_POLICY_FCFS_FILL_FCFS_FILL_H_

#include <vector>

#include "router/core/model/free_capacity.h"
#include "router/core/policy/policy.h"

namespace bfio::core {

class FcfsFillPolicy final : public Policy {
 public:
  absl::string_view name() const override { return "fcfs_fill"; }
  void Decide(const Snapshot& snapshot, Decision& decision) override;

 private:
  FreeCapacity free_;
};

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_POLICY_FCFS_FILL_FCFS_FILL_H_
