#include "tools/sim/experiment/columns.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "tools/sim/run/workload.h"

namespace bfio::sim {

void AddColumns(report::Table& table, absl::Span<const Metric> metrics) {
  for (const Metric& metric : metrics) {
    table.columns.push_back({metric.name, metric.unit});
    table.columns.push_back({"+-", metric.unit, 2});
  }
}

void AddCells(std::vector<report::Cell>& row, const SeededRuns& runs, size_t variant,
              absl::Span<const Metric> metrics) {
  for (const Metric& metric : metrics) AddEstimate(row, runs.Mean(variant, metric.key), metric.scale);
}

report::Chart LineChart(const std::string& title, const report::Axis& x, absl::Span<const double> xs,
                        const Metric& metric, const SeededRuns& runs, absl::Span<const Line> lines) {
  report::Chart chart;
  chart.title = title;
  chart.x = x;
  chart.y.label = metric.name;
  chart.y.unit = metric.unit;
  if (!lines.empty() && !lines[0].against.empty()) {
    chart.y.label = absl::StrCat("change of ", metric.name);
    chart.y.unit = "%";
    chart.note = "Paired by seed; the band is the 95 % interval.";
  }
  for (const Line& line : lines) {
    report::Series& series = chart.series.emplace_back();
    series.name = line.name;
    series.style = line.style;
    series.strong = line.strong;
    for (size_t i = 0; i < line.variants.size(); ++i) {
      if (line.against.empty()) {
        AddPoint(series, xs[i], runs.Mean(line.variants[i], metric.key), metric.scale);
        continue;
      }
      Estimate change = runs.Ratio(line.variants[i], line.against[i], metric.key);
      change.mean -= 1;
      AddPoint(series, xs[i], change, 100);
    }
  }
  return chart;
}

std::string Capital(const std::string& name) {
  std::string result = name;
  if (!result.empty()) result[0] = absl::ascii_toupper(static_cast<unsigned char>(result[0]));
  return result;
}

int64_t StepsOf(const ExperimentContext& context, int64_t least) {
  constexpr int64_t kSteps = 3000;
  return context.Shortened(context.base.steps > 0 ? context.base.steps : kSteps, least);
}

int64_t WarmUpOf(const ExperimentContext& context, const Trace& trace) {
  constexpr double kLengths = 5;
  constexpr int64_t kLeast = 20;
  const int64_t wanted = static_cast<int64_t>(std::ceil(kLengths * MeanOutputTokens(trace)));
  return context.Shortened(std::max(context.base.warmup, wanted), kLeast);
}

void AddRunLength(Findings& findings, const Workload& workload, const SimOptions& options) {
  findings.parameters.push_back({absl::StrCat("steps, ", workload.name),
                                 absl::StrCat(options.steps, " after a warm-up of ", options.warmup)});
}

}  // namespace bfio::sim
