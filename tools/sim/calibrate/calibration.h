// The time of a step, fitted to the workers' step logs (worker/link/step_log.h): C, t_l and the prefill cost
// for the simulator. Local time = C + t_l * L + c_p * prefill, fitted robustly; a term that the data does not
// determine is left out with a warning. A second fit is by the batch's tokens. Also reports which workers are
// slower than the others, and the time of the barrier and of the gap between steps. Threads: any. The only
// I/O is reading the files.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace bfio::sim {

// One step of one rank, in tokens and seconds.
struct StepSample {
  int32_t worker = 0;  // index in StepRows::workers
  double epoch = 0, step = 0;
  double load_tokens = 0, prefill_tokens = 0;
  double local_s = 0, barrier_wait_s = 0;
  // Negative: the step does not follow another one without a pause.
  double gap_s = -1;
  // Content of the batch; 0 in logs of older workers, which do not have these columns.
  double batch_tokens = 0, prefill_pairs = 0, decode_context = 0;
};

struct StepRows {
  std::vector<std::string> files;
  std::vector<std::string> workers;
  std::vector<StepSample> samples;
  // Number of lines that could not be used, and a description of the first; usually the last line, which was
  // cut off.
  int64_t bad_lines = 0;
  std::string first_bad;
};

// Maximum number of rows. All are held in memory, at some 90 bytes each.
inline constexpr size_t kMaxStepRows = 20'000'000;

// Appends the rows of one file's text. Columns are found by name. An empty file is valid: its worker was
// killed right after its start. INVALID_ARGUMENT naming a column that is missing, or for too many rows.
absl::Status ParseStepRows(absl::string_view text, absl::string_view source, StepRows& rows);
// Reads the logs, and PATH.1 of each if it exists. NOT_FOUND for a log that cannot be read.
absl::StatusOr<StepRows> ReadStepRows(const std::vector<std::string>& paths);

struct RobustFit {
  // The constant first, then one per column.
  std::vector<double> coefficients;
  std::vector<double> standard_errors;
  // Scale of the residuals: 1.4826 times their median absolute deviation.
  double scale = 0;
  // Weighted by the points' weights.
  double r_squared = 0;
  // Points without any weight.
  int64_t outliers = 0;
  // Condition number of the columns, each scaled to unit spread: 1 where they are uncorrelated, infinite
  // where one is a linear combination of the others.
  double condition = 1;
  // By point: y - fit.
  std::vector<double> residuals;
};

// A linear fit through many points of which some are outliers: Y = b0 + b1 x1 + .. by an M-estimator. It
// starts with least absolute deviations, so that a few outliers do not determine where the fit converges.
// Then it uses Tukey's bisquare (95 % of least squares' efficiency on normal noise) on the scale of the
// median absolute deviation. Standard errors are those of the sandwich estimator, which holds when the noise
// grows with y, too (Huber and Ronchetti, Robust Statistics, 7.6). `columns[j][i]` belongs to `y[i]`.
// REQUIRES: columns as long as y. INVALID_ARGUMENT with fewer points than three per coefficient, or when a
// column is constant or a linear combination of the others.
absl::StatusOr<RobustFit> FitRobustly(const std::vector<std::vector<double>>& columns,
                                      const std::vector<double>& y);
// The value below which a share q of the values lies; 0 when empty.
double QuantileOf(std::vector<double> values, double q);

// A coefficient is {value, standard_error}, or null where the data does not determine it. `batch`: a step's
// time by its batch's tokens (common/cost/batch_time.h), fitted for each of several b0, of which the one with
// the smallest residuals is used; null when fewer than 100 steps have batch columns, or all of them are
// alike. `sim_flags`: with which bfio_sim uses this cost. INVALID_ARGUMENT when there are too few rows.
absl::StatusOr<nlohmann::ordered_json> Calibrate(const StepRows& rows);

}  // namespace bfio::sim
