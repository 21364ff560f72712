#include "tools/loadgen/run_charts.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"

namespace bfio::loadgen {
namespace {

using report::Axis;
using report::Chart;
using report::Series;

constexpr double kLogSpan = 50;
constexpr const char* kTime = "/series/t_s";

struct Latency {
  const char* key;
  const char* name;
  const char* meaning;
};
constexpr Latency kLatencies[] = {{"ttft_s", "TTFT", "time to first token"},
                                  {"tpot_s", "TPOT", "time per output token"},
                                  {"itl_s", "ITL", "time between tokens"},
                                  {"e2e_s", "E2E", "whole request"},
                                  {"schedule_lag_s", "sent late by", "schedule lag"}};

// One number of each level, NaN where there is none.
std::vector<double> OfLevels(const RunDocument& run, const std::string& member) {
  std::vector<double> numbers;
  for (size_t i = 0; i < run.Size("/levels"); ++i) {
    numbers.push_back(run.Number(absl::StrCat("/levels/", i, "/", member)));
  }
  return numbers;
}

Series LevelSeries(const RunDocument& run, std::string name, const std::string& member) {
  return {.name = std::move(name), .x = OfLevels(run, "offered_rate"), .y = OfLevels(run, member)};
}

// Offered requests per second, of which this share.
Series LevelShare(const RunDocument& run, std::string name, const std::string& member) {
  Series series = LevelSeries(run, std::move(name), member);
  for (size_t i = 0; i < series.y.size(); ++i) series.y[i] *= series.x[i];
  return series;
}

Axis OfferedAxis() {
  return {.label = "offered", .unit = "requests/s"};
}

std::string CapitalName(const std::string& key) {
  std::string name = LatencyMeaning(key);
  if (!name.empty()) name[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(name[0])));
  return name;
}

}  // namespace

std::string LatencyName(const std::string& key) {
  for (const Latency& latency : kLatencies) {
    if (key == latency.key) return latency.name;
  }
  return key;
}

std::string LatencyMeaning(const std::string& key) {
  for (const Latency& latency : kLatencies) {
    if (key == latency.key) return latency.meaning;
  }
  return key;
}

Series LineOf(const RunDocument& run, std::string name, const std::string& x_path, const std::string& y_path,
              double factor) {
  Series series = {.name = std::move(name), .x = run.Numbers(x_path), .y = run.Numbers(y_path)};
  for (double& y : series.y) y *= factor;
  return series;
}

bool HasData(const Chart& chart) {
  return std::any_of(chart.series.begin(), chart.series.end(), [](const Series& series) {
    return !series.x.empty() &&
           std::any_of(series.y.begin(), series.y.end(), [](double y) { return std::isfinite(y); });
  });
}

void FitSeconds(Chart* chart) {
  double lowest = HUGE_VAL, highest = 0;
  for (const Series& series : chart->series) {
    for (const double y : series.y) {
      if (!(y > 0) || std::isinf(y)) continue;
      lowest = std::min(lowest, y);
      highest = std::max(highest, y);
    }
  }
  chart->y.unit = highest < 1 ? "ms" : "s";
  chart->y.log = highest > kLogSpan * lowest;
  if (highest >= 1) return;
  for (Series& series : chart->series) {
    for (double& y : series.y) y *= 1e3;
  }
}

Axis TimeAxis(const std::vector<RunDocument>& runs) {
  Axis axis = {.label = "time since the start", .unit = "s", .min = 0.0};
  for (const RunDocument& run : runs) {
    const double end = run.Number("/duration_s");
    if (end > 0) axis.max = std::max(axis.max.value_or(0), end);
  }
  return axis;
}

Chart ThroughputChart(const RunDocument& run) {
  return {.title = "Throughput",
          .note = "Output tokens by the time they came, of requests that failed later too.",
          .x = TimeAxis({run}),
          .y = {.label = "throughput", .unit = "tokens/s", .min = 0.0},
          .series = {LineOf(run, "output tokens", kTime, "/series/tokens_per_s")}};
}

Chart RequestsChart(const RunDocument& run) {
  Chart chart = {.title = "Requests",
                 .note = "Requests by the time they were due, and by the time they ended.",
                 .x = TimeAxis({run}),
                 .y = {.label = "rate", .unit = "requests/s", .min = 0.0},
                 .series = {LineOf(run, "due", kTime, "/series/due_per_s"),
                            LineOf(run, "completed", kTime, "/series/completed_per_s")}};
  Series failed = LineOf(run, "failed", kTime, "/series/failed_per_s");
  if (std::any_of(failed.y.begin(), failed.y.end(), [](double y) { return y > 0; })) {
    chart.series.push_back(std::move(failed));
  }
  return chart;
}

Chart UnderWayChart(const RunDocument& run) {
  return {
      .title = "Requests under way",
      .note =
          "Sent and not ended, as the generator counts; waiting, as the router tells where --admin was "
          "given.",
      .x = TimeAxis({run}),
      .y = {.label = "requests", .min = 0.0},
      .series = {LineOf(run, "under way", kTime, "/series/under_way_mean"),
                 LineOf(run, "of these, waiting in the router", "/group/t_s", "/group/waiting_requests")}};
}

Chart LatencyChart(const RunDocument& run, const std::string& key) {
  Chart chart = {.title = absl::StrCat(LatencyName(key), ": ", LatencyMeaning(key)),
                 .x = TimeAxis({run}),
                 .y = {.label = LatencyMeaning(key), .unit = "s"}};
  const bool lag = key == "schedule_lag_s";
  for (const char* quantile : {"p50", "p90", "p99"}) {
    chart.series.push_back(LineOf(run, quantile, kTime, absl::StrCat("/series/", key, "/", quantile)));
  }
  if (lag) {
    chart.title = "How late the generator was";
    chart.series.push_back(LineOf(run, "max", kTime, absl::StrCat("/series/", key, "/max")));
  }
  chart.note = key == "itl_s" ? "By the time the later token came."
               : lag ? "From the time a request was due to the time it was sent. Latencies contain it."
                     : "Completed requests, by the time they were due.";
  FitSeconds(&chart);
  return chart;
}

Chart DistributionChart(const RunDocument& run) {
  Chart chart = {.title = "Share of requests by latency",
                 .note = "How large a share of requests (of gaps between tokens, for ITL) took no longer.",
                 .x = {.label = "latency", .unit = "s", .log = true},
                 .y = {.label = "share that took no longer", .unit = "%", .min = 0.0, .max = 100.0}};
  for (const char* key : {"ttft_s", "tpot_s", "itl_s", "e2e_s"}) {
    chart.series.push_back(
        LineOf(run, LatencyName(key), absl::StrCat("/distributions/", key), "/distributions/share", 100));
  }
  return chart;
}

Chart RankLoadChart(const RunDocument& run) {
  Chart chart = {
      .title = "Load of each rank",
      .note =
          "Resident KV tokens, mean of the steps of each stretch of time. The largest rank of a step "
          "sets the pace of all.",
      .x = TimeAxis({run}),
      .y = {.label = "load", .unit = "tokens", .min = 0.0}};
  for (size_t rank = 0; rank < run.Size("/group/ranks"); ++rank) {
    chart.series.push_back(LineOf(run, absl::StrCat("rank ", rank), "/group/t_s",
                                  absl::StrCat("/group/ranks/", rank, "/load_tokens")));
  }
  chart.series.push_back(LineOf(run, "largest of each step", "/group/t_s", "/group/max_load_tokens"));
  chart.series.back().strong = true;
  chart.series.push_back(LineOf(run, "mean", "/group/t_s", "/group/mean_load_tokens"));
  chart.series.back().strong = true;
  return chart;
}

Chart RankIdleChart(const RunDocument& run) {
  Chart chart = {
      .title = "Idle at the barrier",
      .note = "Waiting at the barrier as a share of local work and waiting, measured by the ranks.",
      .x = TimeAxis({run}),
      .y = {.label = "idle", .unit = "%", .min = 0.0}};
  for (size_t rank = 0; rank < run.Size("/group/ranks"); ++rank) {
    chart.series.push_back(LineOf(run, absl::StrCat("rank ", rank), "/group/t_s",
                                  absl::StrCat("/group/ranks/", rank, "/idle_fraction"), 100));
  }
  chart.series.push_back(LineOf(run, "group", "/group/t_s", "/group/idle_fraction", 100));
  chart.series.back().strong = true;
  return chart;
}

Chart LevelRatesChart(const RunDocument& run) {
  Chart chart = {
      .title = "Offered and served",
      .note =
          "Served: while requests due later take no longer, all are; if the time they take grows by g "
          "seconds per second, 1 in 1 + g is.",
      .x = OfferedAxis(),
      .y = {.label = "rate", .unit = "requests/s", .min = 0.0}};
  Series offered = LevelSeries(run, "offered", "offered_rate");
  offered.style = Series::Style::kDashed;
  chart.series.push_back(std::move(offered));
  chart.series.push_back(LevelShare(run, "served", "served_share"));
  if (run.Has("/goodput")) chart.series.push_back(LevelShare(run, "within the limits", "good_share"));
  return chart;
}

Chart LevelLatencyChart(const RunDocument& run) {
  Chart chart = {.title = "Latency over rate",
                 .note = "99th percentiles of the requests due at each rate.",
                 .x = OfferedAxis(),
                 .y = {.label = "latency", .unit = "s", .log = true}};
  for (const char* key : {"ttft_s", "tpot_s", "e2e_s"}) {
    chart.series.push_back(
        LevelSeries(run, absl::StrCat(LatencyName(key), " p99"), absl::StrCat(key, "/p99")));
  }
  return chart;
}

Chart ThroughputChart(const std::vector<RunDocument>& runs) {
  Chart chart = {.title = "Throughput",
                 .x = TimeAxis(runs),
                 .y = {.label = "throughput", .unit = "tokens/s", .min = 0.0}};
  for (const RunDocument& run : runs)
    chart.series.push_back(LineOf(run, run.name(), kTime, "/series/tokens_per_s"));
  return chart;
}

Chart LatencyChart(const std::vector<RunDocument>& runs, const std::string& key) {
  Chart chart = {.title = absl::StrCat(LatencyName(key), ", 99th percentile"),
                 .x = TimeAxis(runs),
                 .y = {.label = LatencyMeaning(key), .unit = "s"}};
  for (const RunDocument& run : runs) {
    chart.series.push_back(LineOf(run, run.name(), kTime, absl::StrCat("/series/", key, "/p99")));
  }
  FitSeconds(&chart);
  return chart;
}

Chart DistributionChart(const std::vector<RunDocument>& runs, const std::string& key) {
  Chart chart = {.title = absl::StrCat(CapitalName(key), " (", LatencyName(key), ")"),
                 .x = {.label = LatencyMeaning(key), .unit = "s", .log = true},
                 .y = {.label = "share that took no longer", .unit = "%", .min = 0.0, .max = 100.0}};
  for (const RunDocument& run : runs) {
    chart.series.push_back(
        LineOf(run, run.name(), absl::StrCat("/distributions/", key), "/distributions/share", 100));
  }
  return chart;
}

Chart IdleChart(const std::vector<RunDocument>& runs) {
  Chart chart = {.title = "Idle at the barrier",
                 .note = "Waiting at the barrier as a share of local work and waiting, all ranks.",
                 .x = TimeAxis(runs),
                 .y = {.label = "idle", .unit = "%", .min = 0.0}};
  for (const RunDocument& run : runs) {
    chart.series.push_back(LineOf(run, run.name(), "/group/t_s", "/group/idle_fraction", 100));
  }
  return chart;
}

Chart LevelLatencyChart(const std::vector<RunDocument>& runs) {
  Chart chart = {.title = "TTFT over rate, 99th percentile",
                 .x = OfferedAxis(),
                 .y = {.label = "time to first token", .unit = "s"}};
  for (const RunDocument& run : runs) chart.series.push_back(LevelSeries(run, run.name(), "ttft_s/p99"));
  FitSeconds(&chart);
  return chart;
}

}  // namespace bfio::loadgen
