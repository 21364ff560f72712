#include "tools/sim/calibrate/calibrate_command.h"

#include <iostream>
#include <string>
#include <vector>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"
#include "common/config/absl_flags.h"
#include "tools/sim/calibrate/calibration.h"
#include "tools/sim/flags.h"

ABSL_DECLARE_FLAG(std::string, steps);
ABSL_DECLARE_FLAG(bool, json);

namespace bfio::sim {

absl::Status RunCalibrateCommand() {
  if (!FlagWasGiven("steps")) {
    return absl::InvalidArgumentError("calibrate needs --steps=LOG,.. of workers' --step_log");
  }
  const std::vector<std::string> paths = absl::StrSplit(absl::GetFlag(FLAGS_steps), ',', absl::SkipEmpty());
  BFIO_ASSIGN_OR_RETURN(const StepRows rows, ReadStepRows(paths));
  BFIO_ASSIGN_OR_RETURN(const Calibration calibration, Calibrate(rows));
  if (absl::GetFlag(FLAGS_json)) {
    std::cout
        << CalibrationJson(rows, calibration).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)
        << std::endl;
  } else {
    std::cout << CalibrationText(rows, calibration) << std::flush;
  }
  return absl::OkStatus();
}

}  // namespace bfio::sim
