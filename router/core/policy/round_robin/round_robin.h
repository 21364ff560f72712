// Round robin: request i goes to worker i mod G; a worker that cannot take it is skipped.
//
// Source: BF-IO paper, section 6.1, baseline; the default of most reverse proxies.
//
// Purpose: baseline; placement that uses no loads. Threads: as Policy.
#ifndef BFIO_ROUTER_CORE_POLICY_ROUND_ROBIN_ROUND_ROBIN_H_
#define BFIO_ROUTER_CORE_POLICY_ROUND_ROBIN_ROUND_ROBIN_H_

#include <vector>

#include "router/core/model/free_capacity.h"
#include "router/core/policy/policy.h"

namespace bfio::core {

class RoundRobinPolicy final : public Policy {
 public:
  absl::string_view name() const override { return "round_robin"; }
  void Decide(const Snapshot& snapshot, Decision& decision) override;

 private:
  FreeCapacity free_;
  // Where the next request is offered first.
  WorkerIndex next_ = 0;
};

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_POLICY_ROUND_ROBIN_ROUND_ROBIN_H_
