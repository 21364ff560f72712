// BF-IO paper, Figure 5: how long answers are, and how near to geometric.
//
// No simulation: the lengths of the workloads are described, and a geometric distribution on 1, 2, ... is
// fitted to them by maximum likelihood (p = 1 / mean). The paper shows four public traces and prints no
// figures; only BurstGPT is among ours, as the sample of the authors' simulator.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tools/sim/experiment/experiments.h"

namespace bfio::sim {
namespace {

// Survival below this is too few requests for a slope.
constexpr double kLeastSurvivalForSlope = 0.01;
constexpr int64_t kHistogramBins = 40;
// The histogram leaves out so much of the tail; the survival curves show it.
constexpr double kHistogramCut = 0.995;
// Of a fitted curve: enough that no point is marked as if it had been measured.
constexpr int kFitPoints = 50;

struct Survival {
  std::vector<double> length, share;  // P(o > length)
};

struct Lengths {
  std::vector<int64_t> sorted;
  Estimate mean;
  double p = 1;  // of the fit

  double count() const { return static_cast<double>(sorted.size()); }
  double FitSurvival(double k) const { return std::pow(1 - p, k); }
};

Lengths Describe(const Trace& trace) {
  Lengths lengths;
  std::vector<double> samples;
  for (const TraceRequest& request : trace.requests) {
    lengths.sorted.push_back(request.output_tokens);
    samples.push_back(static_cast<double>(request.output_tokens));
  }
  std::sort(lengths.sorted.begin(), lengths.sorted.end());
  lengths.mean = EstimateMean(samples);
  lengths.p = 1 / lengths.mean.mean;
  return lengths;
}

// At 0 and at every length that occurs.
Survival SurvivalOf(const Lengths& lengths) {
  Survival survival;
  survival.length = {0};
  survival.share = {1};
  for (size_t i = 0; i < lengths.sorted.size(); ++i) {
    if (i + 1 < lengths.sorted.size() && lengths.sorted[i + 1] == lengths.sorted[i]) continue;
    survival.length.push_back(static_cast<double>(lengths.sorted[i]));
    survival.share.push_back(1 - static_cast<double>(i + 1) / lengths.count());
  }
  return survival;
}

struct Distance {
  double value = 0;
  double at = 0;
};

// Kolmogorov and Smirnov's, over the whole numbers. Both functions are flat between these; the measured one
// is flat between the lengths that occur, so the largest distance is at one of them or just before the next.
Distance DistanceToFit(const Lengths& lengths, const Survival& survival) {
  Distance largest;
  const auto look = [&](double k, double share) {
    const double distance = std::abs(share - lengths.FitSurvival(k));
    if (distance > largest.value) largest = {distance, k};
  };
  for (size_t i = 0; i < survival.length.size(); ++i) {
    look(survival.length[i], survival.share[i]);
    if (i + 1 < survival.length.size()) look(survival.length[i + 1] - 1, survival.share[i]);
  }
  return largest;
}

// Of ln P(o > k) on k, least squares over every k up to the 99 % point.
double MeasuredSlope(const Survival& survival) {
  double n = 0, x = 0, y = 0, xx = 0, xy = 0;
  for (size_t i = 0; i + 1 < survival.length.size(); ++i) {
    if (survival.share[i] < kLeastSurvivalForSlope) break;
    const double log_share = std::log(survival.share[i]);
    for (double k = survival.length[i]; k < survival.length[i + 1]; ++k) {
      n += 1;
      x += k;
      y += log_share;
      xx += k * k;
      xy += k * log_share;
    }
  }
  return (n * xy - x * y) / (n * xx - x * x);
}

struct Mode {
  int64_t length = 0;
  int64_t count = 0;
};

Mode MostCommon(const std::vector<int64_t>& sorted) {
  Mode mode;
  for (size_t begin = 0, end = 0; begin < sorted.size(); begin = end) {
    while (end < sorted.size() && sorted[end] == sorted[begin]) ++end;
    if (static_cast<int64_t>(end - begin) > mode.count) {
      mode = {sorted[begin], static_cast<int64_t>(end - begin)};
    }
  }
  return mode;
}

report::Table MakeTable() {
  report::Table table;
  table.title = "Decode lengths and their geometric fits";
  table.note =
      "+-: half width of the 95 % interval of the mean, taking the rows as independent. p = 1 / mean is the "
      "maximum likelihood estimate, ln(1 - p) its log-survival slope. Measured slope: least squares over "
      "the lengths up to the 99 % point. Distance: the largest difference of the two distribution functions "
      "(Kolmogorov-Smirnov). A geometric distribution has a coefficient of variation of sqrt(1 - p).";
  table.columns = {{"workload", ""},
                   {"requests", ""},
                   {"mean", "tokens", 4},
                   {"+-", "tokens", 2},
                   {"median", "tokens"},
                   {"coefficient of variation", ""},
                   {"of the fit", ""},
                   {"p of the fit", "10^-3"},
                   {"slope of the fit", "1/1000 tokens"},
                   {"measured slope", "1/1000 tokens"},
                   {"distance", ""},
                   {"largest at", "tokens"},
                   {"most common", "tokens"},
                   {"its share", "%"}};
  return table;
}

std::vector<report::Cell> MakeRow(const std::string& name, const Lengths& lengths, const Survival& survival) {
  const Distance distance = DistanceToFit(lengths, survival);
  const Mode mode = MostCommon(lengths.sorted);
  return {name,
          static_cast<int64_t>(lengths.sorted.size()),
          lengths.mean.mean,
          lengths.mean.half_width,
          lengths.sorted[(lengths.sorted.size() - 1) / 2],
          lengths.mean.standard_deviation / lengths.mean.mean,
          std::sqrt(1 - lengths.p),
          1000 * lengths.p,
          1000 * std::log(1 - lengths.p),
          1000 * MeasuredSlope(survival),
          distance.value,
          static_cast<int64_t>(distance.at),
          mode.length,
          100 * static_cast<double>(mode.count) / lengths.count()};
}

report::Chart SurvivalChart(const std::string& name, const Lengths& lengths, const Survival& survival) {
  report::Chart chart;
  chart.title = absl::StrCat("Share of longer answers: ", name);
  chart.note = "A geometric distribution is a straight line here.";
  chart.x = {"decode length k", "tokens"};
  chart.y = {"P(o > k)", "", true};
  report::Series measured{name, survival.length, survival.share};
  measured.style = report::Series::Style::kSteps;
  report::Series fit;
  fit.name = absl::StrFormat("geometric, p = %.3g", lengths.p);
  fit.style = report::Series::Style::kDashed;
  // To the end of the data, or where less than half a request would be left.
  const double end =
      std::min(survival.length.back(), std::log(0.5 / lengths.count()) / std::log(1 - lengths.p));
  for (int i = 0; i <= kFitPoints; ++i) {
    fit.x.push_back(end * i / kFitPoints);
    fit.y.push_back(lengths.FitSurvival(fit.x.back()));
  }
  chart.series = {measured, fit};
  return chart;
}

report::Chart HistogramChart(const std::string& name, const Lengths& lengths) {
  report::Chart chart;
  chart.title = absl::StrCat("Decode lengths: ", name);
  const auto cut = lengths.sorted[static_cast<size_t>(kHistogramCut * (lengths.count() - 1))];
  const int64_t width = std::max<int64_t>(1, (cut + kHistogramBins - 1) / kHistogramBins);
  const int64_t bins = (cut + width - 1) / width;
  chart.note = absl::StrFormat("Bins of %d tokens; the longest %.1f %% of the answers lie beyond.", width,
                               100 * (1 - kHistogramCut));
  chart.x = {"decode length", "tokens"};
  chart.y = {"share of the requests", "%"};
  report::Series measured, fit;
  measured.name = name;
  measured.style = report::Series::Style::kSteps;
  fit.name = absl::StrFormat("geometric, p = %.3g", lengths.p);
  for (int64_t bin = 0; bin < bins; ++bin) {
    const int64_t low = bin * width, high = low + width;  // low < o <= high
    const auto at_most = [&](int64_t k) {
      return std::upper_bound(lengths.sorted.begin(), lengths.sorted.end(), k);
    };
    measured.x.push_back(static_cast<double>(low));
    measured.y.push_back(100 * static_cast<double>(at_most(high) - at_most(low)) / lengths.count());
    fit.x.push_back(0.5 * static_cast<double>(low + high));
    fit.y.push_back(100 * (lengths.FitSurvival(static_cast<double>(low)) -
                           lengths.FitSurvival(static_cast<double>(high))));
  }
  measured.x.push_back(static_cast<double>(bins * width));
  measured.y.push_back(measured.y.back());
  chart.series = {measured, fit};
  return chart;
}

// All workloads at once, lengths in units of their mean: all that is geometric falls on one line.
report::Chart AllChart() {
  report::Chart chart;
  chart.title = "All workloads, lengths over their mean";
  chart.note = "A geometric distribution of a large mean lies on the dashed line.";
  chart.x = {"decode length over its mean", ""};
  chart.y = {"share of longer answers", "", true};
  return chart;
}

void AddToAll(report::Chart& chart, const std::string& name, const Lengths& lengths, Survival survival) {
  for (double& length : survival.length) length /= lengths.mean.mean;
  chart.series.push_back({name, std::move(survival.length), std::move(survival.share)});
}

void AddExponential(report::Chart& chart, double most_requests) {
  const double end = std::log(2 * most_requests);
  report::Series line{"exponential", {}, {}};
  for (int i = 0; i <= kFitPoints; ++i) {
    line.x.push_back(end * i / kFitPoints);
    line.y.push_back(std::exp(-line.x.back()));
  }
  line.style = report::Series::Style::kDashed;
  chart.series.push_back(line);
}

}  // namespace

absl::StatusOr<Findings> Fig5(const ExperimentContext& context) {
  Findings findings;
  findings.text.push_back(
      "Lengths of the answers, a geometric distribution fitted to each workload, and how far it is from "
      "what it is fitted to. The paper shows four traces (OpenChat, BurstGPT, LMSYS, WildChat), says that "
      "their lengths exhibit the geometric pattern and prints no figures.");
  report::Table table = MakeTable();
  report::Chart all = AllChart();
  std::vector<report::Chart> charts;
  double most_requests = 1;
  for (const Workload& workload : context.workloads) {
    const Lengths lengths = Describe(*workload.trace);
    const Survival survival = SurvivalOf(lengths);
    const Distance distance = DistanceToFit(lengths, survival);
    table.rows.push_back(MakeRow(workload.name, lengths, survival));
    charts.push_back(SurvivalChart(workload.name, lengths, survival));
    charts.push_back(HistogramChart(workload.name, lengths));
    AddToAll(all, workload.name, lengths, survival);
    most_requests = std::max(most_requests, lengths.count());
    findings.text.push_back(absl::StrFormat(
        "%s: mean %.1f tokens, p = %.4g; at most %.1f %% of the requests would have to be moved across any "
        "one length to make it geometric (%.0f tokens is the worst). Coefficient of variation %.2f, "
        "geometric %.2f.",
        workload.name, lengths.mean.mean, lengths.p, 100 * distance.value, distance.at,
        lengths.mean.standard_deviation / lengths.mean.mean, std::sqrt(1 - lengths.p)));
    findings.parameters.emplace_back(
        workload.name, absl::StrCat(lengths.sorted.size(), " requests, from ", workload.trace->source));
  }
  AddExponential(all, most_requests);
  findings.parameters.emplace_back("fit", "maximum likelihood, P(o > k) = (1 - p)^k, p = 1 / mean");
  findings.parameters.emplace_back("seeds", "none: nothing is drawn but profiles, with seed 1");
  findings.tables = {std::move(table)};
  findings.charts = {std::move(all)};
  for (report::Chart& chart : charts) findings.charts.push_back(std::move(chart));
  return findings;
}

}  // namespace bfio::sim
