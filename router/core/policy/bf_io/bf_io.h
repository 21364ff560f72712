// BF-IO: an integer program over the whole pool chooses which waiting requests to admit, and on which
// workers.
//
// Source: BF-IO paper, section 3 (IO); the program itself is router/core/solver. With a lookahead, H steps
// ahead count, each with `discount` times the weight of the one before it. Objectives:
//   square  (default) squared deviations of the loads from a common level, less weights for waiting
//           (valuation.h): balances better and does not starve any request.
//   paper   J = sum over h of G max L - sum L. Its term - sum L rewards large requests, so small ones may
//           wait long.
// Classes of priority are strict: a request is never passed over for a lower class while KV admits it.
//
// Purpose: the program with the user's settings; bf_io_auto derives its settings itself. Threads: as Policy.
#ifndef BFIO_ROUTER_CORE_POLICY_BF_IO_BF_IO_H_
#define BFIO_ROUTER_CORE_POLICY_BF_IO_BF_IO_H_

#include <utility>
#include <vector>

#include "router/core/model/free_capacity.h"
#include "router/core/policy/bf_io/valuation.h"
#include "router/core/policy/policy.h"
#include "router/core/solver/gap_probe.h"
#include "router/core/solver/solver.h"

namespace bfio::core {

class BfIoPolicy final : public Policy {
 public:
  BfIoPolicy(const SolverSettings& settings, int32_t horizon, double discount, StopSignal stop = {},
             int32_t gap_every = 0)
      : settings_(settings),
        horizon_(horizon),
        discount_(discount),
        stop_(std::move(stop)),
        solver_(settings),
        probe_(gap_every) {}

  absl::string_view name() const override { return "bf_io"; }
  int32_t horizon() const override { return horizon_; }
  void Decide(const Snapshot& snapshot, Decision& decision) override;

 private:
  void SetDiscounts();
  void ScaleWeights();

  SolverSettings settings_;
  int32_t horizon_;
  double discount_;
  StopSignal stop_;
  FreeCapacity free_;
  Valuation valuation_;
  Instance instance_;
  Solver solver_;
  GapProbe probe_;
};

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_POLICY_BF_IO_BF_IO_H_
