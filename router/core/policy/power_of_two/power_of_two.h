// Power of two choices: of two workers drawn at random among those with room, the one with fewer active
// requests.
//
// Source: Mitzenmacher, "The power of two choices in randomized load balancing" (2001); power-of-d in BF-IO,
// section 6.1.
#ifndef BFIO_ROUTER_CORE_POLICY_POWER_OF_TWO_POWER_OF_TWO_H_
#define BFIO_ROUTER_CORE_POLICY_POWER_OF_TWO_POWER_OF_TWO_H_

#include <cstdint>
#include <vector>

#include "common/base/rng.h"
#include "router/core/policy/policy.h"
#include "router/core/policy/room.h"

namespace bfio::core {

class PowerOfTwoPolicy final : public Policy {
 public:
  explicit PowerOfTwoPolicy(uint64_t seed) : rng_(seed) {}
  absl::string_view name() const override { return "power_of_two"; }
  void Decide(const Snapshot& snapshot, std::vector<Assignment>& plan) override;

 private:
  WorkerIndex Pick(const WaitingView& request);

  Room room_;
  Rng rng_;
  // Scratch: the workers that can take the request at hand.
  std::vector<WorkerIndex> candidates_;
};

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_POLICY_POWER_OF_TWO_POWER_OF_TWO_H_
