// Reads the workers' step logs (worker/link/step_log.h). Columns are found by name, so logs with columns
// added or reordered can be read. Threads: any. The only I/O is reading the files.
#ifndef BFIO_TOOLS_SIM_CALIBRATE_STEP_ROWS_H_
#define BFIO_TOOLS_SIM_CALIBRATE_STEP_ROWS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace bfio::sim {

// One step of one rank, in tokens and seconds.
struct StepSample {
  int32_t worker = 0;  // index in StepRows::workers
  int32_t rank = 0;
  uint64_t epoch = 0;
  int64_t step = 0;
  double load_tokens = 0;
  double prefill_tokens = 0;
  double local_s = 0;
  double barrier_wait_s = 0;
  std::optional<double> gap_s;
  // Content of the batch; absent in logs of older workers.
  struct Batch {
    double tokens = 0, prefill_pairs = 0, decode_context = 0;
  };
  std::optional<Batch> batch;
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

// Maximum number of rows. All are held in memory, at some 70 bytes each.
inline constexpr size_t kMaxStepRows = 20'000'000;

// Appends the rows of one file's text. An empty file is valid: its worker was killed right after its start.
// INVALID_ARGUMENT naming a column that is missing, or for too many rows.
absl::Status ParseStepRows(absl::string_view text, absl::string_view source, StepRows& rows);

// Reads the logs, and PATH.1 of each if it exists. NOT_FOUND for a log that cannot be read.
absl::StatusOr<StepRows> ReadStepRows(const std::vector<std::string>& paths);

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_CALIBRATE_STEP_ROWS_H_
