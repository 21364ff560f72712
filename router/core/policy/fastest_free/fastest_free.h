// jffc, sa_jsq and jiq: policies for units that differ in speed and share no barrier.
//
// Purpose: a worker has slots and a service time, whether it is a rank that steps independently or a chain of
// servers. The waiting pool is the central queue; its requests are offered in order. A worker that lacks a
// slot or the KV memory for a request counts as full. Threads: as Policy.
#ifndef BFIO_ROUTER_CORE_POLICY_FASTEST_FREE_FASTEST_FREE_H_
#define BFIO_ROUTER_CORE_POLICY_FASTEST_FREE_FASTEST_FREE_H_

#include <string>
#include <vector>

#include "common/base/rng.h"
#include "router/core/model/free_capacity.h"
#include "router/core/policy/fastest_free/unit_rules.h"
#include "router/core/policy/policy.h"

namespace bfio::core {

class FastestFreePolicy final : public Policy {
 public:
  enum class Rule { kJffc, kSaJsq, kJiq };

  FastestFreePolicy(Rule rule, uint64_t seed) : rule_(rule), rng_(seed) {}

  absl::string_view name() const override;
  void Decide(const Snapshot& snapshot, Decision& decision) override;

 private:
  int32_t Choose();

  const Rule rule_;
  Rng rng_;
  FreeCapacity free_;
  // Workers, fastest first, and the rule's view of them.
  std::vector<WorkerIndex> order_;
  std::vector<UnitView> units_;
};

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_POLICY_FASTEST_FREE_FASTEST_FREE_H_
