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

// Rounds means, whose further digits are noise, to keep files small.
double Rounded(double value, double unit) {
  return std::round(value / unit) * unit;
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

double Idle(const RankSums& rank) {
  const double all = rank.local_s + rank.wait_s;
  return all > 0 ? Rounded(rank.wait_s / all, 1e-5) : NAN;
}

double GroupIdle(const GroupBin& bin) {
  RankSums sums;
  for (const RankSums& rank : bin.ranks) {
    sums.local_s += rank.local_s;
    sums.wait_s += rank.wait_s;
  }
  return Idle(sums);
}

double PerStep(double sum, const GroupBin& bin) {
  return bin.steps > 0 ? Rounded(sum / static_cast<double>(bin.steps), 0.1) : NAN;
}

Json RankJson(const std::vector<GroupBin>& bins, size_t rank) {
  const auto present = [rank](const GroupBin& bin) {
    return rank < bin.ranks.size() && bin.ranks[rank].steps > 0;
  };
  return {{"load_tokens", Each(bins,
                               [&](const GroupBin& bin, size_t) {
                                 if (!present(bin)) return static_cast<double>(NAN);
                                 const RankSums& sums = bin.ranks[rank];
                                 return Rounded(sums.load_tokens / static_cast<double>(sums.steps), 0.1);
                               })},
          {"idle_fraction", Each(bins, [&](const GroupBin& bin, size_t) {
             return present(bin) ? Idle(bin.ranks[rank]) : NAN;
           })}};
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

Json GroupJson(const GroupTimeline& timeline) {
  const std::vector<GroupBin>& bins = timeline.bins().bins();
  size_t ranks = 0;
  for (const GroupBin& bin : bins) ranks = std::max(ranks, bin.ranks.size());
  Json json = {{"width_s", timeline.bins().width_s()},
               {"missed_steps", timeline.missed_steps()},
               {"t_s", Middles(timeline.bins())}};
  json["steps"] = Each(bins, [](const GroupBin& bin, size_t) { return static_cast<double>(bin.steps); });
  json["max_load_tokens"] =
      Each(bins, [](const GroupBin& b, size_t) { return PerStep(b.max_load_tokens, b); });
  json["mean_load_tokens"] =
      Each(bins, [](const GroupBin& b, size_t) { return PerStep(b.mean_load_tokens, b); });
  json["waiting_requests"] =
      Each(bins, [](const GroupBin& b, size_t) { return PerStep(b.waiting_requests, b); });
  json["idle_fraction"] = Each(bins, [](const GroupBin& bin, size_t) { return GroupIdle(bin); });
  json["ranks"] = Json::array();
  for (size_t rank = 0; rank < ranks; ++rank) json["ranks"].push_back(RankJson(bins, rank));
  return json;
}

}  // namespace bfio::loadgen
