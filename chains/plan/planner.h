// A plan for one demand. The computations of bfio_plan, without files and flags. Deterministic. Times in
// seconds, rates in jobs per second. Threads: any, no state.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "chains/core/tuning.h"

namespace bfio::plan {

struct Problem {
  std::vector<core::ChainServer> servers;
  core::ChainService service;
  core::Demand demand;
};

struct Plan {
  core::ChainPlan chosen;
  // Bounds of the mean response time under JFFC.
  core::Occupancy response;
  // Whether nu carries the demand at the target load.
  bool meets_target = false;

  int64_t c() const { return chosen.placement.reserved; }
};

// With the c of the least lower bound of the mean response. FAILED_PRECONDITION, with the violated constraint
// and the missing amount; CANCELLED once `go_on`, called repeatedly, returns false (empty: never).
absl::StatusOr<Plan> MakePlan(const Problem& problem, const std::function<bool()>& go_on = {});

}  // namespace bfio::plan
