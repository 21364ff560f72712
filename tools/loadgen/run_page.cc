#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/str_replace.h"
#include "common/json/json_reader.h"
#include "nlohmann/json.hpp"
#include "tools/loadgen/page_files.h"
#include "tools/loadgen/report.h"

namespace bfio::loadgen {
namespace {

using Json = nlohmann::ordered_json;
using Bins = std::vector<TimelineBin>;

// Shortest interval, as a share of the bin width, for which a rate is reported.
constexpr double kShortestForRate = 0.25;

// {"share": [0, 0.01, .. 1], "ttft_s": [..], ..}: the value that this share of the samples does not exceed.
Json DistributionsJson(const Results& r) {
  std::vector<double> shares;
  for (int i = 0; i < 100; ++i) shares.push_back(i / 100.0);
  for (const double tail : {0.995, 0.999, 0.9999, 1.0}) shares.push_back(tail);
  const auto values = [&](const Histogram& h) {
    Json list = Json::array();
    for (const double share : shares)
      if (h.count() > 0) list.push_back(h.Quantile(share));
    return list;
  };
  return {
      {"share", shares},          {"ttft_s", values(r.ttft_s)}, {"tpot_s", values(r.tpot_s)},
      {"itl_s", values(r.itl_s)}, {"e2e_s", values(r.e2e_s)},   {"schedule_lag_s", values(r.schedule_lag_s)}};
}

// f(bin, index) of every bin; NaN becomes null.
template <typename F>
Json Each(const Bins& bins, F f) {
  Json list = Json::array();
  for (size_t i = 0; i < bins.size(); ++i) {
    const double value = f(bins[i], i);
    list.push_back(std::isfinite(value) ? Json(value) : Json());
  }
  return list;
}

Json Quantiles(const Bins& bins, Histogram TimelineBin::*histogram) {
  const auto quantile = [&](double q) {
    return Each(bins, [&](const TimelineBin& bin, size_t) {
      return (bin.*histogram).count() > 0 ? (bin.*histogram).Quantile(q) : NAN;
    });
  };
  const auto count = [&](const TimelineBin& bin, size_t) {
    return static_cast<double>((bin.*histogram).count());
  };
  return {{"count", Each(bins, count)},
          {"p50", quantile(0.5)},
          {"p90", quantile(0.9)},
          {"p99", quantile(0.99)},
          {"max", quantile(1)}};
}

// {"width_s": .., "t_s": [..], "due_per_s": [..], .., "ttft_s": {"p50": [..], ..}, ..}; t_s is the middle of
// each interval. The last interval has no rate if it is too short.
Json SeriesJson(const Timeline& timeline, double duration_s) {
  const Bins& bins = timeline.bins();
  const double width = timeline.width_s();
  const auto rate = [&](uint64_t TimelineBin::*count) {
    return Each(bins, [&](const TimelineBin& bin, size_t i) {
      const double seconds = std::min(width, duration_s - static_cast<double>(i) * width);
      return seconds >= kShortestForRate * width ? static_cast<double>(bin.*count) / seconds : NAN;
    });
  };
  const auto under_way = [&](auto value) {
    return Each(bins, [&](const TimelineBin& bin, size_t) {
      return bin.under_way_samples > 0 ? static_cast<double>(value(bin)) : NAN;
    });
  };
  return {{"width_s", width},
          {"t_s", Each(bins, [&](const auto&, size_t i) { return (static_cast<double>(i) + 0.5) * width; })},
          {"due_per_s", rate(&TimelineBin::due)},
          {"completed_per_s", rate(&TimelineBin::completed)},
          {"failed_per_s", rate(&TimelineBin::failed)},
          {"tokens_per_s", rate(&TimelineBin::tokens)},
          {"under_way_mean", under_way([](const TimelineBin& bin) {
             return static_cast<double>(bin.under_way_sum) / static_cast<double>(bin.under_way_samples);
           })},
          {"under_way_max", under_way([](const TimelineBin& bin) { return bin.under_way_max; })},
          {"ttft_s", Quantiles(bins, &TimelineBin::ttft_s)},
          {"tpot_s", Quantiles(bins, &TimelineBin::tpot_s)},
          {"itl_s", Quantiles(bins, &TimelineBin::itl_s)},
          {"e2e_s", Quantiles(bins, &TimelineBin::e2e_s)},
          {"schedule_lag_s", Quantiles(bins, &TimelineBin::schedule_lag_s)}};
}

// One file, without references to anything outside: page.html and its chart library, with the data and the
// script that draws it.
std::string HtmlPage(absl::string_view script, const Json& data) {
  std::string json = JsonText(data);
  // In JSON a '<' occurs only inside strings. Unescaped, it could end the HTML element or open a comment.
  absl::StrReplaceAll({{"<", "\\u003c"}}, &json);
  return absl::StrReplaceAll(
      page::kPageHtml, {{"{{library}}", page::kChartMinJs}, {"{{data}}", json}, {"{{script}}", script}});
}

}  // namespace

std::string RunPage(const Report& report) {
  Json run = ResultJson(report);
  run["distributions"] = DistributionsJson(report.results);
  run["series"] = SeriesJson(report.results.timeline, report.results.duration_s);
  return HtmlPage(page::kRunPageJs, run);
}

}  // namespace bfio::loadgen
