// The time of a step, fitted to the workers' step logs (worker/link/step_log.h): C, t_l and the prefill cost
// for the simulator, by the fit that workers make online (common/cost/online_fit.h); a term that the data
// does not determine is left out with a warning. A second fit, the router's (common/cost/group_fit.h), is by
// the batch's tokens. Also reports which workers are slower than the others, and the time of the barrier and
// of the gap between steps. Threads: any. The only I/O is reading the files.
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

// A coefficient is {value, standard_error}, or null where the data does not determine it; those of `batch`
// have no errors. `batch`: a step's time by its batch's tokens (common/cost/batch_time.h); null when fewer
// than 100 steps have batch columns, or all of them are alike. `sim_flags`: with which bfio_sim uses this
// cost. INVALID_ARGUMENT when there are too few rows.
absl::StatusOr<nlohmann::ordered_json> Calibrate(const StepRows& rows);

}  // namespace bfio::sim
