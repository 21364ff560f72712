#include "tools/sim/experiment/idle_charts.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace bfio::sim {
namespace {

constexpr double kPercentPerBin = 2;

std::vector<double> Counting(size_t count, double first = 1) {
  std::vector<double> numbers(count);
  std::iota(numbers.begin(), numbers.end(), first);
  return numbers;
}

report::Chart TraceChart(const ExperimentContext& context, const std::vector<IdleWatched>& all,
                         size_t workload) {
  report::Chart chart;
  chart.title = absl::StrCat("Idle share over the steps: ", context.workloads[workload].name);
  chart.note = "Seed 1.";
  chart.x = {"counted step", ""};
  chart.y = {"idle share", "%"};
  chart.y.min = 0;
  for (const IdleWatched& watched : all) {
    if (watched.workload != workload) continue;
    chart.series.push_back({watched.rule.name, Counting(watched.idle[0].size()), watched.idle[0]});
  }
  chart.references = {{"mean of the paper's trace", kPaperIdleMean}};
  return chart;
}

std::string SeriesName(const ExperimentContext& context, const IdleWatched& watched) {
  if (context.workloads.size() == 1) return watched.rule.name;
  return absl::StrCat(watched.rule.name, ", ", context.workloads[watched.workload].name);
}

report::Chart HistogramChart(const ExperimentContext& context, const std::vector<IdleWatched>& all) {
  report::Chart chart;
  chart.title = "How often a step is idle by how much";
  chart.note = absl::StrFormat("Steps of all seeds, in bins of %g %%.", kPercentPerBin);
  chart.x = {"idle share", "%"};
  chart.y = {"share of the steps", "%"};
  for (const IdleWatched& watched : all) {
    const std::vector<double> steps = watched.AllSeeds();
    const double most = *std::max_element(steps.begin(), steps.end());
    std::vector<double> counts(static_cast<size_t>(most / kPercentPerBin) + 1);
    for (const double idle : steps) {
      counts[static_cast<size_t>(idle / kPercentPerBin)] += 100 / static_cast<double>(steps.size());
    }
    report::Series& series = chart.series.emplace_back();
    series.name = SeriesName(context, watched);
    series.style = report::Series::Style::kSteps;
    series.x = Counting(counts.size() + 1, 0);
    for (double& x : series.x) x *= kPercentPerBin;
    series.y = std::move(counts);
    series.y.push_back(0);
  }
  return chart;
}

report::Chart CumulativeChart(const ExperimentContext& context, const std::vector<IdleWatched>& all) {
  constexpr int kPoints = 200;
  report::Chart chart;
  chart.title = "Share of steps that are idle by no more than this";
  chart.note = "Steps of all seeds; the median is where a curve crosses 50 %.";
  chart.x = {"idle share", "%"};
  chart.y = {"share of the steps", "%"};
  for (const IdleWatched& watched : all) {
    const std::vector<double> steps = watched.AllSeeds();
    report::Series& series = chart.series.emplace_back();
    series.name = SeriesName(context, watched);
    for (int i = 0; i <= kPoints; ++i) {
      const double share = static_cast<double>(i) / kPoints;
      series.x.push_back(QuantileOf(steps, share));
      series.y.push_back(100 * share);
    }
  }
  chart.references = {{"median", 50}};
  return chart;
}

report::Chart LoadChart(const ExperimentContext& context, const IdleWatched& watched) {
  report::Chart chart;
  chart.title = absl::StrCat("Loads of the workers: ", watched.rule.name, ", ",
                             context.workloads[watched.workload].name);
  chart.note =
      absl::StrCat("The first ", watched.loads.size(),
                   "counted steps of seed 1, as many as the paper's figure has. The heaviest worker decides "
                   "when the step ends.");
  chart.x = {"counted step", ""};
  chart.y = {"load", "10^3 tokens"};
  const std::vector<double> steps = Counting(watched.loads.size());
  report::Series max{"heaviest", steps, {}}, mean{"mean", steps, {}};
  const size_t workers = watched.loads[0].size();
  for (size_t g = 0; g < workers; ++g) chart.series.push_back({absl::StrCat("worker ", g), steps, {}});
  for (const std::vector<int64_t>& loads : watched.loads) {
    const int64_t sum = std::accumulate(loads.begin(), loads.end(), int64_t{0});
    max.y.push_back(1e-3 * static_cast<double>(*std::max_element(loads.begin(), loads.end())));
    mean.y.push_back(1e-3 * static_cast<double>(sum) / static_cast<double>(workers));
    for (size_t g = 0; g < workers; ++g) chart.series[g].y.push_back(1e-3 * static_cast<double>(loads[g]));
  }
  max.strong = mean.strong = true;
  chart.series.push_back(max);
  chart.series.push_back(mean);
  return chart;
}

}  // namespace

std::vector<report::Chart> IdleCharts(const ExperimentContext& context, const std::vector<IdleWatched>& all) {
  std::vector<report::Chart> charts = {LoadChart(context, all[0])};
  for (size_t w = 0; w < context.workloads.size(); ++w) charts.push_back(TraceChart(context, all, w));
  charts.push_back(HistogramChart(context, all));
  charts.push_back(CumulativeChart(context, all));
  return charts;
}

}  // namespace bfio::sim
