#include "tools/sim/cells/cell.h"

#include <algorithm>
#include <cmath>
#include <iostream>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "nlohmann/json.hpp"

ABSL_DECLARE_FLAG(std::string, trace);
ABSL_DECLARE_FLAG(std::string, profile);

namespace bfio::sim {
namespace {

// Number of rows that represent a profile.
constexpr int64_t kRowsToDrawFrom = 100'000;

}  // namespace

void PrintCell(const nlohmann::ordered_json& cell) {
  std::cout << cell.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << std::endl;
}

absl::Status CheckNumber(absl::string_view flag, double value, double low, double high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--", flag, "=", value, " is not within ", low, " and ", high));
}

absl::StatusOr<std::vector<double>> NumbersOf(absl::string_view flag, absl::string_view text,
                                              char separator) {
  std::vector<double> numbers;
  for (const absl::string_view item : absl::StrSplit(text, separator, absl::SkipEmpty())) {
    double& number = numbers.emplace_back();
    if (!absl::SimpleAtod(item, &number) || !std::isfinite(number)) {
      return absl::InvalidArgumentError(absl::StrCat("--", flag, "=", text, ": '", item, "' is no number"));
    }
  }
  return numbers;
}

absl::StatusOr<size_t> ChoiceOf(absl::string_view flag, absl::string_view name,
                                const std::vector<absl::string_view>& names) {
  const auto at = std::find(names.begin(), names.end(), name);
  if (at != names.end()) return static_cast<size_t>(at - names.begin());
  return absl::InvalidArgumentError(
      absl::StrCat("--", flag, "=", name, ": choose one of ", absl::StrJoin(names, ", ")));
}

absl::StatusOr<Trace> RowsFromFlags() {
  const std::string path = absl::GetFlag(FLAGS_trace), profile = absl::GetFlag(FLAGS_profile);
  if (!path.empty() && !profile.empty()) {
    return absl::InvalidArgumentError("give --trace or --profile, not both");
  }
  if (!path.empty()) return ReadTrace(path);
  if (!profile.empty()) return SampleProfile(profile, kRowsToDrawFrom, 1);
  return Trace{};
}

double SampleQuantile(std::vector<double> samples, double q) {
  if (samples.empty()) return std::nan("");
  const double rank = q * static_cast<double>(samples.size() - 1);
  const auto below = static_cast<std::ptrdiff_t>(rank);
  std::nth_element(samples.begin(), samples.begin() + below, samples.end());
  const double low = samples[below];
  if (below + 1 == static_cast<std::ptrdiff_t>(samples.size())) return low;
  const double high = *std::min_element(samples.begin() + below + 1, samples.end());
  return low + (rank - static_cast<double>(below)) * (high - low);
}

}  // namespace bfio::sim
