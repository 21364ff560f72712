#include "common/config/rates.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace bfio {

absl::StatusOr<std::vector<double>> ParseRates(absl::string_view flag, absl::string_view text) {
  const auto wrong = [&](absl::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat("--", flag, "=", text, ": ", why));
  };
  const bool range = absl::StrContains(text, ':');
  std::vector<double> numbers;
  for (const absl::string_view part : absl::StrSplit(text, range ? ':' : ',')) {
    if (!absl::SimpleAtod(part, &numbers.emplace_back()) || !std::isfinite(numbers.back()) ||
        numbers.back() <= 0)
      return wrong(absl::StrCat("'", part, "' is not a number above 0"));
    if (numbers.size() > kMostRates) return wrong(absl::StrCat("more than ", kMostRates, " rates"));
  }
  if (!range) {
    if (!std::is_sorted(numbers.begin(), numbers.end())) return wrong("rates must be in ascending order");
    return numbers;
  }
  if (numbers.size() != 3 || numbers[0] > numbers[1])
    return wrong("a range must be FROM:TO:STEP with FROM <= TO");
  // The tolerance keeps the end of a range such as 0.1:0.3:0.1.
  const double steps = std::floor((numbers[1] - numbers[0]) / numbers[2] + 1e-9);
  if (steps >= static_cast<double>(kMostRates))
    return wrong(absl::StrCat("more than ", kMostRates, " rates"));
  std::vector<double> rates;
  for (double k = 0; k <= steps; ++k) rates.push_back(numbers[0] + k * numbers[2]);
  return rates;
}

}  // namespace bfio
