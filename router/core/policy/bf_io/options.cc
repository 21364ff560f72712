#include "router/core/policy/bf_io/options.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace bfio::core {

absl::StatusOr<SolverSettings> BfIoSettings(const PolicyOptions& options) {
  if (options.horizon < 0 || options.horizon > kMaxHorizon) {
    return absl::InvalidArgumentError(
        absl::StrCat("bf_io: horizon ", options.horizon, " must lie between 0 and ", kMaxHorizon));
  }
  if (!(options.discount > 0 && options.discount <= 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("bf_io: discount ", options.discount, " must be above 0 and at most 1"));
  }
  SolverSettings settings;
  if (options.objective == "paper") {
    settings.objective = ObjectiveKind::kPaper;
  } else if (options.objective == "square") {
    settings.objective = ObjectiveKind::kSquare;
  } else {
    return absl::InvalidArgumentError(
        absl::StrCat("bf_io: objective '", options.objective, "' is unknown, choose paper or square"));
  }
  return settings;
}

}  // namespace bfio::core
