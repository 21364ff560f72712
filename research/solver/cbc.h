// Solves LP files with the cbc program (Debian coinor-cbc) and parses its solutions.
#pragma once

#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "router/core/solver/instance.h"

namespace bfio::testing {

// False when no cbc program is on the path.
bool HaveCbc();

// The solution of any problem: the variables that are not 0, by name.
struct CbcVariables {
  // Proven optimal; otherwise the values are the best solution found within the limit, or empty.
  bool optimal = false;
  absl::flat_hash_map<std::string, double> values;
};

// Writes `lp` into a temporary folder, which is removed after the solution has been read. `seconds` limits
// cbc's processor time. UNAVAILABLE when cbc did not run or its output cannot be parsed.
absl::StatusOr<CbcVariables> RunCbc(absl::string_view lp, double seconds);

struct CbcAnswer {
  // Proven optimal; otherwise the best solution found within the limit, if `found`.
  bool optimal = false;
  bool found = false;
  double objective = 0;
  core::Solution solution;
};

// Solves an exported decision. Errors as RunCbc.
absl::StatusOr<CbcAnswer> SolveWithCbc(absl::string_view lp, const core::Instance& instance, double seconds);

}  // namespace bfio::testing
