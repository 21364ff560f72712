#include "tools/loadgen/series_json.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "nlohmann/json.hpp"

namespace bfio::loadgen {
namespace {

using Json = nlohmann::ordered_json;

// Shortest interval, as a share of the bin width, for which a rate is reported.
constexpr double kShortestForRate = 0.25;

std::vector<double> Shares() {
  std::vector<double> shares;
  for (int i = 0; i < 100; ++i) shares.push_back(i / 100.0);
  for (const double tail : {0.995, 0.999, 0.9999, 1.0}) shares.push_back(tail);
  return shares;
}

template <typename Bin>
Json Middles(const TimeBins<Bin>& bins) {
  Json t = Json::array();
  for (size_t i = 0; i < bins.bins().size(); ++i)
    t.push_back((static_cast<double>(i) + 0.5) * bins.width_s());
  return t;
}

// f(bin, index) of every bin; NaN becomes null.
template <typename Bin, typename F>
Json Each(const std::vector<Bin>& bins, F f) {
  Json list = Json::array();
  for (size_t i = 0; i < bins.size(); ++i) {
    const double value = f(bins[i], i);
    list.push_back(std::isfinite(value) ? Json(value) : Json());
  }
  return list;
}

Json Quantiles(const std::vector<TimelineBin>& bins, Histogram TimelineBin::*histogram) {
  const auto quantile = [&](double q) {
    return Each(bins, [&](const TimelineBin& bin, size_t) {
      return (bin.*histogram).count() > 0 ? (bin.*histogram).Quantile(q) : NAN;
    });
  };
  return {{"count", Each(bins, [&](const TimelineBin& bin,
                                   size_t) { return static_cast<double>((bin.*histogram).count()); })},
          {"p50", quantile(0.5)},
          {"p90", quantile(0.9)},
          {"p99", quantile(0.99)},
          {"max", quantile(1)}};
}

}  // namespace

Json DistributionsJson(const Results& r) {
  const std::vector<double> shares = Shares();
  const auto values = [&](const Histogram& h) {
    Json list = Json::array();
    if (h.count() == 0) return list;
    for (const double share : shares) list.push_back(h.Quantile(share));
    return list;
  };
  return {
      {"share", shares},          {"ttft_s", values(r.ttft_s)}, {"tpot_s", values(r.tpot_s)},
      {"itl_s", values(r.itl_s)}, {"e2e_s", values(r.e2e_s)},   {"schedule_lag_s", values(r.schedule_lag_s)}};
}

Json SeriesJson(const Timeline& timeline, double duration_s) {
  const std::vector<TimelineBin>& bins = timeline.bins().bins();
  const double width = timeline.bins().width_s();
  const auto rate = [&](uint64_t TimelineBin::*count) {
    return Each(bins, [&](const TimelineBin& bin, size_t i) {
      const double seconds = std::min(width, duration_s - static_cast<double>(i) * width);
      return seconds >= kShortestForRate * width ? static_cast<double>(bin.*count) / seconds : NAN;
    });
  };
  Json series = {{"width_s", width},
                 {"t_s", Middles(timeline.bins())},
                 {"due_per_s", rate(&TimelineBin::due)},
                 {"completed_per_s", rate(&TimelineBin::completed)},
                 {"failed_per_s", rate(&TimelineBin::failed)},
                 {"tokens_per_s", rate(&TimelineBin::tokens)}};
  series["under_way_mean"] = Each(bins, [](const TimelineBin& bin, size_t) {
    return bin.under_way_samples > 0
               ? static_cast<double>(bin.under_way_sum) / static_cast<double>(bin.under_way_samples)
               : NAN;
  });
  series["under_way_max"] = Each(bins, [](const TimelineBin& bin, size_t) {
    return bin.under_way_samples > 0 ? static_cast<double>(bin.under_way_max) : NAN;
  });
  series["ttft_s"] = Quantiles(bins, &TimelineBin::ttft_s);
  series["tpot_s"] = Quantiles(bins, &TimelineBin::tpot_s);
  series["itl_s"] = Quantiles(bins, &TimelineBin::itl_s);
  series["e2e_s"] = Quantiles(bins, &TimelineBin::e2e_s);
  series["schedule_lag_s"] = Quantiles(bins, &TimelineBin::schedule_lag_s);
  return series;
}

}  // namespace bfio::loadgen
