#include "tools/loadgen/rates.h"

#include <cmath>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"

namespace bfio::loadgen {
namespace {

absl::Status BadRates(absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("--rates: ", what, "; expected requests per second such as 5,10,20 or FROM:TO:STEP"));
}

absl::StatusOr<std::vector<double>> Numbers(absl::string_view text, char separator) {
  std::vector<double> numbers;
  for (const absl::string_view part : absl::StrSplit(text, separator)) {
    double number = 0;
    if (!absl::SimpleAtod(part, &number) || !(number > 0) || std::isinf(number)) {
      return BadRates(absl::StrCat("'", part, "' is not a positive number"));
    }
    numbers.push_back(number);
    if (numbers.size() > kMostLevels) return BadRates(absl::StrCat("more than ", kMostLevels, " rates"));
  }
  return numbers;
}

}  // namespace

absl::StatusOr<std::vector<double>> ParseRates(absl::string_view text) {
  if (!absl::StrContains(text, ':')) return Numbers(text, ',');
  BFIO_ASSIGN_OR_RETURN(std::vector<double> ends, Numbers(text, ':'));
  if (ends.size() != 3) return BadRates(absl::StrCat("'", text, "' is not FROM:TO:STEP"));
  const double from = ends[0], to = ends[1], step = ends[2];
  if (from > to) return BadRates(absl::StrCat("'", text, "' has FROM above TO"));
  // The tolerance keeps the end of a range such as 0.1:0.3:0.1.
  const double steps = std::floor((to - from) / step + 1e-9);
  if (steps >= static_cast<double>(kMostLevels))
    return BadRates(absl::StrCat("more than ", kMostLevels, " rates"));
  std::vector<double> rates;
  for (double i = 0; i <= steps; ++i) rates.push_back(from + i * step);
  return rates;
}

}  // namespace bfio::loadgen
