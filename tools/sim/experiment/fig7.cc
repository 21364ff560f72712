// BF-IO paper, Figures 2 and 7: power of a GPU over time, and the energy of the same work under each policy.
//
// The paper's power law takes the model-FLOPs utilisation (its equations 10, 11, 56 to 58) in the text, the
// load ratio in the code behind its table, and idle power at the barrier in its reasoning; all three are here
// (tools/sim/run/energy.h). All policies serve the same requests. Energy is counted as the authors' script
// does, until the pool is empty, and over the whole work, when policies have made the same tokens.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tools/sim/experiment/experiments.h"
#include "tools/sim/experiment/power_study.h"
#include "tools/sim/experiment/samples.h"
#include "tools/sim/run/energy.h"

namespace bfio::sim {
namespace {

// Of the smoothed curves one point in so many is drawn.
constexpr size_t kStride = 5;

// Share of the group's steps in which every worker draws peak power, percent.
double AtPeak(const std::vector<double>& watts) {
  constexpr double kTolerance = 1e-6;
  const auto at_peak = std::count_if(watts.begin(), watts.end(),
                                     [](double w) { return w > PowerModel{}.peak_w - kTolerance; });
  return 100 * static_cast<double>(at_peak) / static_cast<double>(watts.size());
}

report::Chart PowerChart(const PowerStudy& study, const SeededRuns& runs, size_t power) {
  report::Chart chart;
  chart.title = absl::StrCat("Power of a GPU, by ", kPowers[power].name);
  chart.note = absl::StrFormat(
      "Mean over the group, moving average over %d steps, seed 1, until the pool is empty.", kPowerWindow);
  chart.x = {"simulated time", "s"};
  chart.y = {"mean power of a GPU", "W"};
  for (size_t i = 0; i < study.shown.size(); ++i) {
    const PowerWatched& watched = study.watched[i][0];
    const size_t steps = CountedSteps(runs, i, 0);
    std::vector<double> time = Counted(watched.end_s, steps);
    time.erase(time.begin(),
               time.begin() + static_cast<std::ptrdiff_t>(std::min(kPowerWindow - 1, time.size())));
    const std::vector<double> watts = Counted(watched.watts[power], steps);
    const double at_peak = AtPeak(watts);
    if (at_peak > 50) {
      absl::StrAppendFormat(&chart.note,
                            " %s: x is 1 or more, so cut off, on all workers in %.1f %% of the steps.",
                            study.shown[i].rule.name, at_peak);
    }
    chart.series.push_back({study.shown[i].rule.name, EveryNth(time, kStride),
                            EveryNth(MovingMean(watts, kPowerWindow), kStride)});
  }
  return chart;
}

// One for each power law, to one scale.
std::vector<report::Chart> PowerCharts(const PowerStudy& study, const SeededRuns& runs) {
  std::vector<report::Chart> charts;
  double least = PowerModel{}.peak_w;
  for (size_t p = 0; p < kPowerCount; ++p) {
    for (const report::Series& series : charts.emplace_back(PowerChart(study, runs, p)).series) {
      for (const double watts : series.y) least = std::min(least, watts);
    }
  }
  constexpr double kRound = 20;
  for (report::Chart& chart : charts) {
    chart.y.min = kRound * std::floor(least / kRound);
    chart.y.max = PowerModel{}.peak_w;
  }
  for (size_t p : {0, 2}) charts[p].note += " The paper's: BF-IO 395 to 400 W, default 330 to 380 W.";
  return charts;
}

std::string DescribeEnergy(const PowerStudy& study, const SeededRuns& runs, size_t policy) {
  std::string text = absl::StrCat(study.shown[policy].rule.name, " against ", study.shown[0].rule.name,
                                  ", energy until the pool is empty:");
  for (size_t p = 0; p < kPowerCount; ++p) {
    const Estimate ratio =
        runs.Ratio(PowerStudy::UntilEmpty(policy), PowerStudy::UntilEmpty(0), kPowers[p].energy_key);
    absl::StrAppendFormat(&text, "%s %+.1f +- %.1f %% by %s", p == 0 ? "" : ",", 100 * (ratio.mean - 1),
                          100 * ratio.half_width, kPowers[p].name);
  }
  const Estimate whole = runs.Ratio(PowerStudy::Whole(policy), PowerStudy::Whole(0), kPowers[0].energy_key);
  absl::StrAppendFormat(&text, "; %+.1f +- %.1f %% by %s over the whole work", 100 * (whole.mean - 1),
                        100 * whole.half_width, kPowers[0].name);
  return absl::StrCat(text, ".");
}

}  // namespace

absl::StatusOr<Findings> Fig7(const ExperimentContext& context) {
  PowerStudy study;
  PlanPowerStudy(context, study);
  const absl::StatusOr<SeededRuns> runs = RunSeeds(context, study.variants);
  if (!runs.ok()) return runs.status();

  Findings findings;
  findings.text.push_back(
      absl::StrCat("Power over time and energy of the same ", study.variants[0].options.requests,
                   " requests, drawn with replacement from ", context.workloads[0].name,
                   ". The paper prints 396 kJ for its default policy and 383 kJ for BF-IO, 3.4 % less."));
  for (size_t i = 1; i < study.shown.size(); ++i) findings.text.push_back(DescribeEnergy(study, *runs, i));
  findings.parameters = CommonParameters(context);
  findings.parameters.emplace_back("workload", context.workloads[0].name);
  findings.parameters.emplace_back("requests", absl::StrCat(study.variants[0].options.requests));
  findings.parameters.emplace_back("reveal target R", absl::StrCat(context.base.reveal));
  findings.parameters.emplace_back("lookahead where H > 0", "oracle: every length is known");
  const PowerModel power;
  const MfuModel mfu;
  findings.parameters.emplace_back("power law", absl::StrFormat("%g W + %g W x^%g", power.idle_w,
                                                                power.peak_w - power.idle_w, power.gamma));
  findings.parameters.emplace_back("x by load ratio", "L_g / max L");
  findings.parameters.emplace_back(
      "x by model-FLOPs utilisation",
      absl::StrFormat("tokens/s * 6 * %g / %g FLOP/s / %g", mfu.parameters, mfu.peak_flops, mfu.saturation));
  findings.parameters.emplace_back("idle power at the barrier",
                                   absl::StrFormat("%g W at work, %g W waiting", power.peak_w, power.idle_w));
  findings.tables = PowerTables(study, *runs);
  findings.charts = PowerCharts(study, *runs);
  return findings;
}

}  // namespace bfio::sim
