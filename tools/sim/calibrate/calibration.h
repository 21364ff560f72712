// What a step costs, from the workers' step logs: C, t_l and the prefill cost for the simulator.
//
// Purpose: local time = C + t_l * L + c_p * prefill, fitted robustly; what the data cannot tell is left out
// and said. The same by the batch's tokens (batch_calibration.h). Beside it which worker is slower than the
// rest, and what the barrier and the gap between steps add. Pure. Any thread.
#ifndef BFIO_TOOLS_SIM_CALIBRATE_CALIBRATION_H_
#define BFIO_TOOLS_SIM_CALIBRATE_CALIBRATION_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/sim/calibrate/batch_calibration.h"
#include "tools/sim/calibrate/step_rows.h"

namespace bfio::sim {

struct WorkerDeviation {
  std::string worker;
  int64_t rows = 0;
  // Median of its local time over the fit's, less 1.
  double slower = 0;
  // By more than kSlowShare and more than its scatter explains.
  bool slow = false;
};

struct Calibration {
  // A worker is called slow from here on: less moves no decision.
  static constexpr double kSlowShare = 0.05;

  int64_t rows = 0;
  int64_t outliers = 0;
  // Seconds; per token of load; per prompt token. Absent where the data does not tell.
  Coefficient c;
  std::optional<Coefficient> tl;
  std::optional<Coefficient> prefill;
  double r_squared = 0;
  // Seconds.
  double scale_s = 0;
  struct Quantile {
    double q = 0;
    double residual_s = 0;
  };
  std::vector<Quantile> residuals;
  std::vector<WorkerDeviation> workers;
  // Medians, seconds: what the barrier takes the rank that comes last to it, and from there to the next local
  // work. Absent where no step, no gap was seen.
  std::optional<double> barrier_s;
  std::optional<double> gap_s;
  // The other model: a step's time by its batch. Absent where the logs do not have it, or do not tell.
  std::optional<BatchCalibration> batch;
  std::vector<std::string> warnings;

  double overhead_s() const { return barrier_s.value_or(0) + gap_s.value_or(0); }
};

// INVALID_ARGUMENT when there are too few rows to tell anything.
absl::StatusOr<Calibration> Calibrate(const StepRows& rows);

nlohmann::ordered_json CalibrationJson(const StepRows& rows, const Calibration& calibration);
std::string CalibrationText(const StepRows& rows, const Calibration& calibration);
// Those of bfio_sim that make it run with this cost.
std::string SimFlags(const Calibration& calibration);

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_CALIBRATE_CALIBRATION_H_
