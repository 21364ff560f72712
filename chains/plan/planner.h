// A plan for one demand, and the effect of changes of the pool. The computations of bfio_plan, without files
// and flags. Deterministic. Times in seconds, rates in jobs per second. Threads: any, no state.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "chains/core/tuning.h"

namespace bfio::plan {

struct Problem {
  std::vector<core::ChainServer> servers;
  core::ChainService service;
  core::Demand demand;
  // c; 0: the one with the least lower bound of the mean response.
  int64_t reserve = 0;
};

// The mean response time under JFFC.
struct Response {
  double lower = 0, upper = 0;
  // Set if there are at most two different speeds.
  std::optional<double> exact;
};

// nullopt if the chains' rate does not exceed the demand.
std::optional<Response> ExpectedResponse(const std::vector<core::ServerChain>& chains, double demand);

struct Plan {
  core::ChainPlan chosen;
  Response response;
  // Whether nu carries the demand at the target load.
  bool meets_target = false;

  int64_t c() const { return chosen.placement.reserved; }
};

// FAILED_PRECONDITION, with the violated constraint and the missing amount; INVALID_ARGUMENT for a reserve
// that no server can hold; CANCELLED once `go_on`, called repeatedly, returns false (empty: never).
absl::StatusOr<Plan> MakePlan(const Problem& problem, const std::function<bool()>& go_on = {});

struct Change {
  std::string what;   // "lose fast-3", "add another fast-3"
  int64_t alike = 1;  // number of servers for which the same holds
  // At once: with the present placement. Planned: after placing again with the best of a dozen c around the
  // present one, or of all c if none of those carries the demand (with more than 40 kinds of servers, the
  // present c is tried first). nullopt if none carries the demand.
  double rate_at_once = 0, rate_planned = 0;
  int64_t c_planned = 0;
  std::optional<Response> at_once, planned;
};

// Loss of one server, for each kind in use; one more server, for each kind in the pool. CANCELLED as above.
absl::StatusOr<std::vector<Change>> Changes(const Problem& problem, const Plan& plan,
                                            const std::function<bool()>& go_on = {});

}  // namespace bfio::plan
