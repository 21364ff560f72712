#include "tools/loadgen/rate_profile.h"

#include <algorithm>
#include <cmath>
#include <utility>

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

std::vector<RateLevel> RampLevels(double from, double to, double duration_s) {
  std::vector<RateLevel> levels;
  for (uint32_t i = 0; i < kRampLevels; ++i) {
    const auto at = [&](uint32_t k) { return from + (to - from) * k / kRampLevels; };
    levels.push_back({.length_s = duration_s / kRampLevels, .from = at(i), .to = at(i + 1)});
  }
  return levels;
}

std::vector<RateLevel> StepLevels(const std::vector<double>& rates, double step_duration_s) {
  std::vector<RateLevel> levels;
  for (const double rate : rates) levels.push_back({.length_s = step_duration_s, .from = rate, .to = rate});
  return levels;
}

absl::StatusOr<ProfileArrivals> ProfileArrivals::Create(std::vector<RateLevel> levels, double burstiness,
                                                        uint64_t seed) {
  BFIO_ASSIGN_OR_RETURN(
      ArrivalProcess unit,
      ArrivalProcess::Create({.kind = "gamma", .rate = 1, .burstiness = burstiness}, Trace(), seed));
  return ProfileArrivals(std::move(levels), std::move(unit));
}

std::optional<ProfileArrivals::Arrival> ProfileArrivals::Next() {
  if (level_ >= levels_.size()) return std::nullopt;
  const double count = unit_.Next();
  while (count >= before_ + levels_[level_].mean_rate() * levels_[level_].length_s) {
    before_ += levels_[level_].mean_rate() * levels_[level_].length_s;
    if (++level_ >= levels_.size()) return std::nullopt;
  }
  const RateLevel& level = levels_[level_];
  // Solves from * t + slope * t^2 / 2 == expected for t, in the form without cancellation.
  const double expected = count - before_;
  const double slope = (level.to - level.from) / level.length_s;
  const double root = std::sqrt(std::max(0.0, level.from * level.from + 2 * slope * expected));
  const double offset = expected > 0 ? 2 * expected / (level.from + root) : 0;
  return Arrival{level_, std::min(offset, level.length_s)};
}

}  // namespace bfio::loadgen
