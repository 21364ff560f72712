// --rates: the rates of a sweep, in requests per second.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace bfio::loadgen {

inline constexpr size_t kMostLevels = 200;

// Parses "5,10,20", or "10:100:10" for 10, 20, .. 100. INVALID_ARGUMENT with one line for other text, for
// rates that are not positive, and for more than kMostLevels rates.
absl::StatusOr<std::vector<double>> ParseRates(absl::string_view text);

}  // namespace bfio::loadgen
