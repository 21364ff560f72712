// BF-IO: which waiting requests, and where, by the integer program over the whole pool.
//
// Source: BF-IO paper, section 3 (IO), horizon 0; the program itself is router/core/solver. Objectives:
//   square  (default) squared deviations of the loads from a common level, less what waiting is worth
//           (valuation.h): balances better and starves nobody.
//   paper   J = G max L - sum L. Its term - sum L rewards large requests, so small ones may wait for long.
// Classes of priority are strict: a request is never passed over for a lower class while KV lets it in.
#ifndef BFIO_ROUTER_CORE_POLICY_BF_IO_BF_IO_H_
#define BFIO_ROUTER_CORE_POLICY_BF_IO_BF_IO_H_

#include <vector>

#include "router/core/policy/bf_io/valuation.h"
#include "router/core/policy/policy.h"
#include "router/core/policy/room.h"
#include "router/core/solver/solver.h"

namespace bfio::core {

class BfIoPolicy final : public Policy {
 public:
  explicit BfIoPolicy(const SolverSettings& settings)
      : square_(settings.objective == ObjectiveKind::kSquare), solver_(settings) {}

  absl::string_view name() const override { return "bf_io"; }
  void Decide(const Snapshot& snapshot, std::vector<Assignment>& plan) override;

 private:
  void BuildInstance(const Snapshot& snapshot);

  bool square_;
  Room room_;
  Valuation valuation_;
  Instance instance_;
  Solver solver_;
};

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_POLICY_BF_IO_BF_IO_H_
