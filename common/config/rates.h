// Flags that take several rates.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace bfio {

inline constexpr size_t kMostRates = 1000;

// Parses "5,10,20", or FROM:TO:STEP such as "10:100:10" for 10, 20, .. 100. INVALID_ARGUMENT, with one line
// that names the flag, for other text, for rates that are not above 0 or not in ascending order, and for more
// than kMostRates.
absl::StatusOr<std::vector<double>> ParseRates(absl::string_view flag, absl::string_view text);

}  // namespace bfio
