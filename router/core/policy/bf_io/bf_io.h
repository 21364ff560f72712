// BF-IO: which waiting requests, and where, by the integer program over the whole pool.
//
// Source: BF-IO paper, section 3 (IO), horizon 0; the program itself is router/core/solver. Objectives:
//   square  (default) squared deviations of the loads from their mean, less a weight on waiting age: balances
//           better and lets nobody starve, since a swap gains a bounded amount and waiting gains without bound.
//   paper   J = G max L - sum L. Its term - sum L rewards large requests, so small ones may wait for long.
// Classes of priority are strict: a request is never passed over for a lower class while KV lets it in.
#ifndef BFIO_ROUTER_CORE_POLICY_BF_IO_BF_IO_H_
#define BFIO_ROUTER_CORE_POLICY_BF_IO_BF_IO_H_

#include <vector>

#include "router/core/policy/policy.h"
#include "router/core/policy/room.h"
#include "router/core/solver/solver.h"

namespace bfio::core {

class BfIoPolicy final : public Policy {
 public:
  explicit BfIoPolicy(const SolverSettings& settings) : solver_(settings) {}

  absl::string_view name() const override { return "bf_io"; }
  void Decide(const Snapshot& snapshot, std::vector<Assignment>& plan) override;

 private:
  void BuildInstance(const Snapshot& snapshot);

  Room room_;
  Instance instance_;
  Solver solver_;
};

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_POLICY_BF_IO_BF_IO_H_
