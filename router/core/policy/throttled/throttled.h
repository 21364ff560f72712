// Throttled: the oldest request goes to the first worker that is below its threshold of active requests; when
// all are at it, to the least loaded one with free capacity.
//
// Source: throttled load balancing (Domanal and Reddy, 2013), "the first worker that is under its threshold"
// in the BF-IO paper's related work, which names no threshold. Ours is three quarters of a worker's slots.
// In the source requests queue beyond the threshold. Policies here leave no slot empty, hence the second half
// of the rule.
//
// Purpose: baseline; a threshold instead of a comparison. Threads: as Policy.
#ifndef BFIO_ROUTER_CORE_POLICY_THROTTLED_THROTTLED_H_
#define BFIO_ROUTER_CORE_POLICY_THROTTLED_THROTTLED_H_

#include <vector>

#include "router/core/model/free_capacity.h"
#include "router/core/policy/policy.h"

namespace bfio::core {

class ThrottledPolicy final : public Policy {
 public:
  absl::string_view name() const override { return "throttled"; }
  void Decide(const Snapshot& snapshot, Decision& decision) override;

 private:
  FreeCapacity free_;
};

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_POLICY_THROTTLED_THROTTLED_H_
