// Code shared by the subcommands of this folder: output, checks of numbers, lengths of requests.
//
// Threads: any, no state.
#ifndef BFIO_TOOLS_SIM_CELLS_CELL_H_
#define BFIO_TOOLS_SIM_CELLS_CELL_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/workload/trace.h"
#include "nlohmann/json_fwd.hpp"

namespace bfio::sim {

// Prints `cell` on standard output as one line; NaN becomes null.
void PrintCell(const nlohmann::ordered_json& cell);

// INVALID_ARGUMENT, naming the flag, unless low <= value <= high (so NaN is refused).
absl::Status CheckNumber(absl::string_view flag, double value, double low, double high);

// Parses a list separated by `separator`. INVALID_ARGUMENT, naming the flag, for text that is not a number.
absl::StatusOr<std::vector<double>> NumbersOf(absl::string_view flag, absl::string_view text, char separator);

// Index of `name` in `names`. INVALID_ARGUMENT, naming the flag and the valid names, if it is not there.
absl::StatusOr<size_t> ChoiceOf(absl::string_view flag, absl::string_view name,
                                const std::vector<absl::string_view>& names);

// The rows of --trace or --profile, in order, to draw from; no rows when neither is set.
absl::StatusOr<Trace> RowsFromFlags();

// Linear interpolation between the two samples around rank q (n - 1); NaN without samples. REQUIRES: 0 <= q
// <= 1.
double SampleQuantile(std::vector<double> samples, double q);

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_CELLS_CELL_H_
