// The time of a step as a function of its batch's tokens, from the workers' step logs. Local time = c + a
// max(0, x - b0) + k1 pairs + k2 context (common/cost/batch_time.h), fitted robustly for each of several b0;
// the fit with the smallest residuals is used. Coefficients that the data does not determine, or that would
// be negative, are left out. Pure. Any thread.
#ifndef BFIO_TOOLS_SIM_CALIBRATE_BATCH_CALIBRATION_H_
#define BFIO_TOOLS_SIM_CALIBRATE_BATCH_CALIBRATION_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "tools/sim/calibrate/step_rows.h"

namespace bfio::sim {

struct Coefficient {
  double value = 0;
  double standard_error = 0;
};

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

// Empty when fewer than 100 steps have batch columns, or all of them are alike.
std::optional<BatchCalibration> CalibrateBatches(const StepRows& rows);

nlohmann::ordered_json BatchJson(const BatchCalibration& calibration);
std::string BatchText(const BatchCalibration& calibration);

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_CALIBRATE_BATCH_CALIBRATION_H_
