#include "research/chains/wide_area.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/rng.h"

namespace bfio::sim {
namespace {

struct Place {
  double latitude = 0, longitude = 0;  // degrees
};

// Amsterdam, London, Frankfurt, Paris, Madrid, Milan, Rome, Vienna, Warsaw, Stockholm, Oslo, Helsinki,
// Dublin, Lisbon, Athens, Bucharest, Prague, Zurich, Copenhagen, Budapest.
constexpr Place kCities[] = {{52.37, 4.90},  {51.51, -0.13}, {50.11, 8.68},  {48.86, 2.35},  {40.42, -3.70},
                             {45.46, 9.19},  {41.90, 12.50}, {48.21, 16.37}, {52.23, 21.01}, {59.33, 18.07},
                             {59.91, 10.75}, {60.17, 24.94}, {53.35, -6.26}, {38.72, -9.14}, {37.98, 23.73},
                             {44.43, 26.10}, {50.08, 14.44}, {47.37, 8.54},  {55.68, 12.57}, {47.50, 19.04}};
constexpr double kSpreadDegrees = 1.0, kMedianMs = 20, kMedianSigma = 0.5;
constexpr double kMedianShare = 0.3, kMsPerKm = 0.01;
constexpr double kEarthKm = 6371, kRadians = 3.14159265358979323846 / 180;
constexpr size_t kMostNodes = 4096;

double Kilometres(const Place& a, const Place& b) {
  const double x = (b.longitude - a.longitude) * std::cos((a.latitude + b.latitude) / 2 * kRadians);
  return kEarthKm * kRadians * std::hypot(x, b.latitude - a.latitude);
}

// The first `count` of 0 .. n-1 in random order.
std::vector<size_t> Draw(size_t n, size_t count, Rng& rng) {
  std::vector<size_t> all(n);
  std::iota(all.begin(), all.end(), 0);
  for (size_t i = 0; i < count; ++i) std::swap(all[i], all[i + rng.Below(n - i)]);
  all.resize(count);
  return all;
}

}  // namespace

RttMatrix EuropeanRtts(int64_t nodes, uint64_t seed) {
  Rng rng(seed);
  std::vector<Place> places(nodes);
  std::vector<double> medians(nodes);
  for (int64_t i = 0; i < nodes; ++i) {
    const Place& city = kCities[rng.Below(std::size(kCities))];
    places[i] = {city.latitude + kSpreadDegrees * rng.Normal(),
                 city.longitude + kSpreadDegrees * rng.Normal()};
    medians[i] = kMedianMs * std::exp(kMedianSigma * rng.Normal());
  }
  RttMatrix rtts(nodes, std::vector<double>(nodes, 0));
  for (int64_t i = 0; i < nodes; ++i) {
    for (int64_t j = 0; j < i; ++j) {
      rtts[i][j] = rtts[j][i] =
          kMedianShare * (medians[i] + medians[j]) + kMsPerKm * Kilometres(places[i], places[j]);
    }
  }
  return rtts;
}

absl::StatusOr<RttMatrix> ParseRtts(absl::string_view csv) {
  RttMatrix rtts;
  for (const absl::string_view line : absl::StrSplit(csv, '\n', absl::SkipWhitespace())) {
    std::vector<double>& row = rtts.emplace_back();
    if (rtts.size() > kMostNodes)
      return absl::InvalidArgumentError(absl::StrCat("round-trip times: more than ", kMostNodes, " lines"));
    for (const absl::string_view cell : absl::StrSplit(line, ',')) {
      if (!absl::SimpleAtod(cell, &row.emplace_back()) || !std::isfinite(row.back()) || row.back() < 0) {
        return absl::InvalidArgumentError(absl::StrCat("round-trip times: line ", rtts.size(), ", column ",
                                                       row.size(),
                                                       " is not a number of milliseconds, at least 0"));
      }
    }
  }
  for (size_t i = 0; i < rtts.size(); ++i) {
    if (rtts[i].size() == rtts.size()) continue;
    return absl::InvalidArgumentError(absl::StrCat("round-trip times: line ", i + 1, " has ", rtts[i].size(),
                                                   " columns, but the matrix has ", rtts.size(),
                                                   " lines; it must be square"));
  }
  if (rtts.size() < 2) return absl::InvalidArgumentError("round-trip times: fewer than two nodes");
  return rtts;
}

core::ChainService BloomService() {
  return {.blocks = kBloomBlocks, .block_size = kBloomBlockGb, .cache_size = kBloomCacheGb};
}

WideAreaPool DrawPool(const RttMatrix& rtts, int64_t count, double fast, uint64_t seed) {
  Rng places = Rng(seed).Fork(1), kinds = Rng(seed).Fork(2);
  const std::vector<size_t> nodes = Draw(rtts.size(), static_cast<size_t>(count) + 1, places);
  const auto fast_count = static_cast<size_t>(std::llround(fast * static_cast<double>(count)));
  std::vector<bool> is_fast(count, false);
  for (const size_t j : Draw(count, fast_count, kinds)) is_fast[j] = true;
  WideAreaPool pool;
  for (int64_t j = 0; j < count; ++j) {
    const GpuKind& gpu = is_fast[j] ? kFastGpu : kSlowGpu;
    const double round_trip = 1e-3 * rtts[nodes[0]][nodes[j + 1]];
    pool.servers.push_back(
        {absl::StrCat(is_fast[j] ? "fast-" : "slow-", j), gpu.memory,
         CommunicationSeconds(kBloomJob, round_trip, kMessageOverhead),
         ComputeSeconds(kBloomJob, gpu.speed, {kBloomGflop, kBloomBlockGb}, kBlockOverhead)});
    pool.throughput.push_back(gpu.throughput);
    pool.round_trip.push_back(round_trip);
  }
  return pool;
}

}  // namespace bfio::sim
