#include <string>
#include <vector>

#include "common/base/status_macros.h"
#include "tools/sim/calibrate/calibration.h"
#include "tools/sim/commands.h"

namespace bfio::sim {

absl::Status RunCalibrateCommand(const ReadOptions& read) {
  std::vector<std::string> logs;
  bool json = false;
  OptionTable table;
  table.Add("steps", &logs, "step logs of workers (--step_log), separated by commas");
  AddJson(table, json);
  read(table);
  if (logs.empty()) {
    return absl::InvalidArgumentError("calibrate needs --steps=FILE,.. with workers' step logs (--step_log)");
  }
  BFIO_ASSIGN_OR_RETURN(const StepRows rows, ReadStepRows(logs));
  BFIO_ASSIGN_OR_RETURN(const nlohmann::ordered_json calibration, Calibrate(rows));
  PrintResult(calibration, json);
  return absl::OkStatus();
}

}  // namespace bfio::sim
