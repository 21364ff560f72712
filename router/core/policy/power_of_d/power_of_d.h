// Power of d choices: of d workers drawn at random among those with free capacity, the one with fewest active
// requests (ties: drawn first).
//
// Source: Mitzenmacher, "The power of two choices in randomized load balancing" (2001); "power-of-d" in the
// BF-IO paper's related work. power_of_two is d = 2. With d >= G it is least requests with random ties.
//
// Purpose: baseline; the rule of balancers that do not compare every worker. Threads: as Policy.
#ifndef BFIO_ROUTER_CORE_POLICY_POWER_OF_D_POWER_OF_D_H_
#define BFIO_ROUTER_CORE_POLICY_POWER_OF_D_POWER_OF_D_H_

#include <cstdint>
#include <vector>

#include "common/base/rng.h"
#include "router/core/model/free_capacity.h"
#include "router/core/policy/policy.h"

namespace bfio::core {

class PowerOfDPolicy final : public Policy {
 public:
  // REQUIRES: choices >= 1; `name` outlives the policy.
  PowerOfDPolicy(absl::string_view name, int32_t choices, uint64_t seed)
      : name_(name), choices_(choices), rng_(seed) {}
  absl::string_view name() const override { return name_; }
  void Decide(const Snapshot& snapshot, Decision& decision) override;

 private:
  WorkerIndex Pick(const WaitingView& request);

  absl::string_view name_;
  int32_t choices_;
  FreeCapacity free_;
  Rng rng_;
  // Scratch: the workers that can take the request at hand.
  std::vector<WorkerIndex> candidates_;
};

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_POLICY_POWER_OF_D_POWER_OF_D_H_
