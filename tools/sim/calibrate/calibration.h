// The time of a step, fitted to the workers' step logs: C, t_l and the prefill cost for the simulator. Local
// time = C + t_l * L + c_p * prefill, fitted robustly; a term that the data does not determine is left out
// with a warning. A second fit is by the batch's tokens. Also reports which workers are slower than the
// others, and the time of the barrier and of the gap between steps. Pure. Any thread.
#ifndef BFIO_TOOLS_SIM_CALIBRATE_CALIBRATION_H_
#define BFIO_TOOLS_SIM_CALIBRATE_CALIBRATION_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/sim/calibrate/step_rows.h"

namespace bfio::sim {

struct Coefficient {
  double value = 0;
  double standard_error = 0;
};

// A step's time by its batch's tokens (common/cost/batch_time.h), fitted for each of several b0; the fit with
// the smallest residuals is used. Coefficients that the data does not determine, or that would be negative,
// are left out.
struct BatchCalibration {
  int64_t rows = 0;
  int64_t outliers = 0;
  // Seconds; per token beyond b0; per pair of prompt tokens; per cached token of a decode.
  Coefficient c, a;
  int64_t b0_tokens = 0;
  std::optional<Coefficient> k1, k2;
  double r_squared = 0;
  // |local time / fit - 1| over the steps with tokens, including outliers.
  double median_error = 0, p95_error = 0;
};

struct WorkerDeviation {
  std::string worker;
  int64_t rows = 0;
  // Median of the worker's local time over the fitted time, minus 1.
  double slower = 0;
  // Slower by more than kSlowShare and by more than its scatter explains.
  bool slow = false;
};

struct Calibration {
  // Smaller deviations do not change a decision.
  static constexpr double kSlowShare = 0.05;

  int64_t rows = 0;
  int64_t outliers = 0;
  // Seconds; per token of load; per prompt token. Absent where the data does not determine it.
  Coefficient c;
  std::optional<Coefficient> tl;
  std::optional<Coefficient> prefill;
  double r_squared = 0;
  // Scale of the residuals, in seconds.
  double scale_s = 0;
  struct Quantile {
    double q = 0;
    double residual_s = 0;
  };
  std::vector<Quantile> residuals;
  std::vector<WorkerDeviation> workers;
  // Medians in seconds: the barrier's time for the rank that arrives last, and the gap from there to the next
  // local work. Absent when no step or no gap was logged.
  std::optional<double> barrier_s;
  std::optional<double> gap_s;
  // The other model: a step's time by its batch. Absent where the logs lack the columns or do not determine
  // it.
  std::optional<BatchCalibration> batch;
  std::vector<std::string> warnings;

  double overhead_s() const { return barrier_s.value_or(0) + gap_s.value_or(0); }
};

// Empty when fewer than 100 steps have batch columns, or all of them are alike.
std::optional<BatchCalibration> CalibrateBatches(const StepRows& rows);

// INVALID_ARGUMENT when there are too few rows.
absl::StatusOr<Calibration> Calibrate(const StepRows& rows);

nlohmann::ordered_json CalibrationJson(const StepRows& rows, const Calibration& calibration);
std::string CalibrationText(const StepRows& rows, const Calibration& calibration);
// The flags with which bfio_sim uses this cost.
std::string SimFlags(const Calibration& calibration);

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_CALIBRATE_CALIBRATION_H_
