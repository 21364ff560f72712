// LPT: the oldest U requests, largest first, each to the least loaded worker with free capacity.
//
// Source: longest processing time first (Graham, 1969). Requests enter first come, first served; only the
// worker is chosen. When KV keeps one of them out, the requests are placed in pool order instead, so that KV
// favours the oldest.
//
// Purpose: the strongest baseline with fcfs's waits: only the placement balances. Threads: as Policy.
#ifndef BFIO_ROUTER_CORE_POLICY_LPT_LPT_H_
#define BFIO_ROUTER_CORE_POLICY_LPT_LPT_H_

#include <cstdint>
#include <vector>

#include "router/core/model/free_capacity.h"
#include "router/core/policy/policy.h"

namespace bfio::core {

class LptPolicy final : public Policy {
 public:
  absl::string_view name() const override { return "lpt"; }
  void Decide(const Snapshot& snapshot, Decision& decision) override;

 private:
  bool PlaceLargestFirst(const Snapshot& snapshot, std::vector<Assignment>& plan);

  FreeCapacity free_;
  std::vector<int32_t> order_;
};

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_POLICY_LPT_LPT_H_
