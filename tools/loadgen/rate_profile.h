// Arrival profiles whose rate changes during the run: ramp, step and sweep.
//
// Purpose: find the cluster's knee (knee.h). A ramp rises linearly from --rate to --rate_to over --duration;
// a step holds each of --rates for --step_duration; a sweep does the same, but waits until all requests have
// ended before the next rate. Each is a list of levels (a ramp: kRampLevels equal parts), in which the rate
// is constant or changes linearly. Pure and seeded; one thread. Units: seconds, requests per second.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/workload/arrivals.h"

namespace bfio::loadgen {

inline constexpr uint32_t kRampLevels = 10;
inline constexpr size_t kMostLevels = 200;

struct RateLevel {
  double length_s = 0;
  // Rate at the beginning and at the end of the level.
  double from = 0;
  double to = 0;

  double mean_rate() const { return (from + to) / 2; }
};

// Parses "5,10,20", or "10:100:10" for 10, 20, .. 100. INVALID_ARGUMENT with one line for other text, for
// rates that are not positive, and for more than kMostLevels rates.
absl::StatusOr<std::vector<double>> ParseRates(absl::string_view text);

std::vector<RateLevel> RampLevels(double from, double to, double duration_s);
std::vector<RateLevel> StepLevels(const std::vector<double>& rates, double step_duration_s);

// A renewal process with gamma-distributed gaps, like ArrivalProcess, whose clock runs at the profile's rate.
class ProfileArrivals {
 public:
  struct Arrival {
    uint32_t level = 0;
    // Seconds after the beginning of the level.
    double offset_s = 0;
  };

  // INVALID_ARGUMENT for a burstiness out of range.
  static absl::StatusOr<ProfileArrivals> Create(std::vector<RateLevel> levels, double burstiness,
                                                uint64_t seed);

  // The next arrival; empty after the end of the last level. Levels are ascending, and so are the offsets
  // within a level.
  std::optional<Arrival> Next();

  const std::vector<RateLevel>& levels() const { return levels_; }

 private:
  ProfileArrivals(std::vector<RateLevel> levels, ArrivalProcess unit)
      : levels_(std::move(levels)), unit_(std::move(unit)) {}

  std::vector<RateLevel> levels_;
  // One arrival per unit of time on average.
  ArrivalProcess unit_;
  uint32_t level_ = 0;
  // Arrivals expected in the levels before level_.
  double before_ = 0;
};

}  // namespace bfio::loadgen
