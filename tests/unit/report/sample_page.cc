#include "tests/unit/report/sample_page.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace bfio::report {
namespace {

// Uniform in [0, 1), the same on every machine.
class Noise {
 public:
  explicit Noise(uint64_t seed) : state_(seed * 2654435761u + 1) {}
  double Next() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<double>(state_ >> 40) / static_cast<double>(1 << 24);
  }

 private:
  uint64_t state_;
};

Series Walk(std::string name, int points, double level, double wobble, uint64_t seed) {
  Noise noise(seed);
  Series series{.name = std::move(name)};
  double drift = 0;
  for (int k = 0; k < points; ++k) {
    drift = 0.999 * drift + wobble * (noise.Next() - 0.5);
    series.x.push_back(k);
    series.y.push_back(level * (1 - std::exp(-6.0 * k / points)) + drift + wobble * noise.Next());
  }
  return series;
}

Chart LoadOfWorkers(int workers, int points) {
  Chart chart{.title = absl::StrCat("Load of ", workers, " workers over time"),
              .note = "Thin lines are workers; the slowest sets the pace of all.",
              .x = {.label = "Step", .unit = "steps"},
              .y = {.label = "KV load", .unit = "tokens"}};
  Series highest{.name = "maximum", .strong = true};
  Series mean{.name = "mean", .strong = true};
  for (int g = 0; g < workers; ++g) {
    chart.series.push_back(
        Walk(absl::StrCat("worker ", g), points, 42000, 900, static_cast<uint64_t>(g) + 1));
  }
  for (size_t k = 0; k < chart.series[0].x.size(); ++k) {
    double sum = 0;
    double top = 0;
    for (int g = 0; g < workers; ++g) {
      sum += chart.series[static_cast<size_t>(g)].y[k];
      top = std::max(top, chart.series[static_cast<size_t>(g)].y[k]);
    }
    highest.x.push_back(static_cast<double>(k));
    highest.y.push_back(top);
    mean.x.push_back(static_cast<double>(k));
    mean.y.push_back(sum / workers);
  }
  chart.series.push_back(highest);
  chart.series.push_back(mean);
  return chart;
}

Chart Policies(int policies) {
  Chart chart{.title = "Imbalance over the number of workers",
              .note = "Both axes are logarithmic. Bands are 95 % intervals over 20 seeds.",
              .x = {.label = "Workers", .log = true},
              .y = {.label = "Mean imbalance", .unit = "tokens", .log = true},
              .references = {{"published, 8 workers", 3200}}};
  for (int p = 0; p < policies; ++p) {
    Series series{.name = absl::StrCat("policy ", std::string(1, static_cast<char>('A' + p)))};
    if (p == 1) series.style = Series::Style::kDashed;
    for (double workers = 4; workers <= 256; workers *= 2) {
      const double y = 90 * (p + 1) * std::pow(workers, 1.1 + 0.05 * p);
      series.x.push_back(workers);
      series.y.push_back(y);
      if (p > 1) continue;
      series.low.push_back(y * 0.82);
      series.high.push_back(y * 1.2);
    }
    chart.series.push_back(series);
  }
  return chart;
}

Chart Bars() {
  Chart chart{.title = "Time per output token by trace",
              .note = "Error bars span the lowest and highest of five runs.",
              .kind = Chart::Kind::kBars,
              .x = {.label = "Trace", .categories = {"normal", "long prompts", "bursty", "mixed tenants"}},
              .y = {.label = "TPOT, mean", .unit = "ms"},
              .references = {{"step without waiting", 21.5}}};
  Noise noise(7);
  for (const char* name : {"fcfs", "least_tokens", "bf_io_auto"}) {
    Series series{.name = name};
    for (int i = 0; i < 4; ++i) {
      const double y = 24 + 14 * noise.Next();
      series.y.push_back(y);
      series.low.push_back(y - 1.5);
      series.high.push_back(y + 2.2);
    }
    chart.series.push_back(series);
  }
  return chart;
}

Chart Signed() {
  Chart chart{.title = "Change of throughput against the baseline",
              .kind = Chart::Kind::kBars,
              .x = {.label = "Configuration"},
              .y = {.label = "Change", .unit = "%"}};
  Series series{.name = "change"};
  Noise noise(3);
  for (int i = 0; i < 24; ++i) {
    chart.x.categories.push_back(absl::StrCat("window ", 1 << (i % 8), ", batch ", 8 * (i / 8 + 1)));
    series.y.push_back(i == 5 ? std::numeric_limits<double>::quiet_NaN() : 14 * noise.Next() - 5);
  }
  chart.series.push_back(series);
  return chart;
}

Chart Scatter(int points) {
  Chart chart{.title = "Wait of requests by length",
              .x = {.label = "Prompt length", .unit = "tokens", .log = true},
              .y = {.label = "Wait", .unit = "s"}};
  Series cloud{.name = "request", .style = Series::Style::kPoints};
  Noise noise(11);
  for (int i = 0; i < points; ++i) {
    cloud.x.push_back(std::exp(4 + 6 * noise.Next()));
    cloud.y.push_back(0.4 * std::pow(noise.Next(), 6) * std::log(cloud.x.back()));
  }
  Series median{.name = "median", .style = Series::Style::kSteps, .strong = true};
  for (int i = 0; i < 8; ++i) {
    median.x.push_back(std::exp(4 + 0.75 * i));
    median.y.push_back(0.05 + 0.02 * i);
  }
  chart.series = {cloud, median};
  return chart;
}

Chart Gaps() {
  Chart chart{.title = "Energy per token while workers leave and return",
              .note = "The line is open where nothing was measured.",
              .x = {.label = "Time", .unit = "s"},
              .y = {.label = "Energy", .unit = "J/token", .max = 0.01}};
  Series series = Walk("measured", 400, 0.007, 0.0008, 5);
  for (size_t i = 120; i < 160; ++i) series.y[i] = std::numeric_limits<double>::quiet_NaN();
  for (size_t i = 0; i < series.y.size(); ++i) {
    series.low.push_back(series.y[i] - 0.0006);
    series.high.push_back(series.y[i] + 0.0009);
  }
  chart.series = {series};
  return chart;
}

Table Results() {
  return {.title = "Results",
          .note = "Means over five seeds.",
          .columns = {{"Policy", ""},
                      {"Throughput", "tokens/s", 4},
                      {"TPOT", "ms", 3},
                      {"Imbalance", "tokens"},
                      {"Requests", ""}},
          .rows = {{"fcfs", 12345.678, 31.25, 90123.0, int64_t{100000}},
                   {"least_tokens", 14011.2, 28.0, 4310.5, int64_t{100000}},
                   {"bf_io_auto", 15222.9, 25.125, 1.5e-7, std::monostate()}}};
}

}  // namespace

Page SamplePage(int points) {
  Page page("Sample report: <balance> & \"pace\"");
  page.Lead("What a page looks like that carries every kind of figure. The data are made up.");
  page.Heading("Setting");
  page.Parameters(
      {{"Workers", "16"}, {"Batch capacity", "72 slots"}, {"Trace", "normal, 100,000 requests, seed 1"}});
  page.Add(Results());
  page.Heading("Over time");
  page.Text("A worker's load is the number of tokens its cache holds.");
  page.Add(LoadOfWorkers(16, points));
  page.Add(LoadOfWorkers(256, points / 20));
  page.Add(Gaps());
  page.Heading("Comparisons");
  page.Add(Policies(20));
  page.Add(Policies(3));
  page.Add(Bars());
  page.Add(Signed());
  page.Add(Scatter(points));
  return page;
}

}  // namespace bfio::report
