// A plan for one demand, and what changes would do to it.
//
// Purpose: what bfio_plan computes, apart from files and flags. Deterministic. Times in seconds, rates in
// jobs per second. Threads: any, no state.
#ifndef BFIO_CHAINS_PLAN_PLANNER_H_
#define BFIO_CHAINS_PLAN_PLANNER_H_

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
  core::TuningGoal goal = core::TuningGoal::kLowerBound;
  // c; 0: tuned by the goal.
  int64_t reserve = 0;
};

// Mean response under JFFC.
struct Response {
  double lower = 0, upper = 0;
  // Where at most two speeds differ.
  std::optional<double> exact;
};

// nullopt where the chains' rate does not exceed the demand.
std::optional<Response> ExpectedResponse(const std::vector<core::ServerChain>& chains, double demand);

struct Plan {
  core::ChainPlan chosen;
  Response response;
  // What c was picked by; another than asked for where the surrogate finds no c feasible. Not read with a
  // given reserve.
  core::TuningGoal tuned_by = core::TuningGoal::kLowerBound;
  // nu carries the demand at the target load.
  bool meets_target = false;

  int64_t c() const { return chosen.placement.reserved; }
};

// FAILED_PRECONDITION with the constraint and the amount that is missing; INVALID_ARGUMENT for a reserve that
// no server can hold; CANCELLED once `go_on`, asked now and then, says no (empty: never).
absl::StatusOr<Plan> MakePlan(const Problem& problem, const std::function<bool()>& go_on = {});

struct Change {
  std::string what;   // "lose fast-3", "add another fast-3"
  int64_t alike = 1;  // servers of which the same holds
  // With the blocks where they are, which happens at once; and planned again with the best of a dozen
  // c around the present one, of all where none of those carries the demand (with more than 40 kinds of
  // servers the present one comes first). nullopt where nothing does.
  double rate_at_once = 0, rate_planned = 0;
  int64_t c_planned = 0;
  std::optional<Response> at_once, planned;
};

// For each kind of server in use the loss of one, for each kind of the pool one more. CANCELLED as above.
absl::StatusOr<std::vector<Change>> Changes(const Problem& problem, const Plan& plan,
                                            const std::function<bool()>& go_on = {});

struct SweepPoint {
  double demand = 0;
  // nullopt where no composition carries it.
  std::optional<Plan> plan;
};

// CANCELLED as above.
absl::StatusOr<std::vector<SweepPoint>> SweepDemand(Problem problem, const std::vector<double>& demands,
                                                    const std::function<bool()>& go_on = {});

// "0.2", "0.1,0.2,0.5" or "FROM:TO:STEP", jobs per second, ascending, at most 1,000. INVALID_ARGUMENT.
absl::StatusOr<std::vector<double>> ParseDemands(absl::string_view text);

}  // namespace bfio::plan

#endif  // BFIO_CHAINS_PLAN_PLANNER_H_
