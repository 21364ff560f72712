// BF-IO paper, Figures 2 and 7: power of a GPU over time, and the energy of the same work under each policy.
//
// The paper's power law takes the model-FLOPs utilisation (its equations 10, 11, 56 to 58) in the text, the
// load ratio in the code behind its table, and idle power at the barrier in its reasoning; all three are here
// (common/cost/energy.h). All policies serve the same requests. Energy is counted as the authors' script
// does, until the pool is empty, and over the whole work, when policies have made the same tokens.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/cost/energy.h"
#include "tools/sim/experiment/columns.h"
#include "tools/sim/experiment/experiments.h"
#include "tools/sim/experiment/rule.h"
#include "tools/sim/experiment/samples.h"

namespace bfio::sim {
namespace {

constexpr int64_t kRequests = 100'000;
constexpr size_t kWindow = 50;
// Of the smoothed curves one point in so many is drawn.
constexpr size_t kStride = 5;

struct PowerName {
  const char* energy_key;
  const char* name;
};

constexpr PowerName kPowers[] = {{"energy_j", "load ratio"},
                                 {"energy_by_mfu_j", "model-FLOPs utilisation"},
                                 {"energy_by_wait_j", "idle power at the barrier"}};
constexpr size_t kPowerCount = std::size(kPowers);

struct Shown {
  Rule rule;
  const char* paper_power;
  double paper_energy_kj;  // NaN: none
};

std::vector<Shown> Policies(const ExperimentContext& context) {
  const double none = std::nan("");
  if (context.policies.empty()) {
    return {{{"FCFS", "fcfs"}, "330 to 380", 396},
            {PaperBfIo(20), "395 to 400", 383},
            {{"bf_io_auto", "bf_io_auto"}, "", none}};
  }
  std::vector<Shown> asked;
  for (const Rule& rule : RulesOr(context, {})) asked.push_back({rule, "", none});
  return asked;
}

// One run, step by step, and its workers' work until the pool is empty.
struct Watched {
  std::vector<double> end_s, seconds;
  // Watts of a GPU, mean over the group, by power law and step.
  std::vector<double> watts[kPowerCount];
  // Of each worker, weighted by time: sums of L_g / max L, and of the time it is at work. By step and worker
  // until counted; see Utilisation.
  std::vector<std::vector<float>> load_ratio, busy;
};

StepTap Watch(Watched& watched) {
  return [&watched](const StepView& view) {
    const PowerModel power;
    const double gpu_seconds = view.seconds * static_cast<double>(view.loads.size());
    watched.end_s.push_back(view.begin_s + view.seconds);
    watched.seconds.push_back(view.seconds);
    watched.watts[0].push_back(power.StepJoules(view.loads, view.seconds) / gpu_seconds);
    watched.watts[1].push_back(MfuModel().StepJoules(power, view.active, view.seconds) / gpu_seconds);
    watched.watts[2].push_back(power.BusyJoules(view.local_s, view.seconds) / gpu_seconds);
    const int64_t max = *std::max_element(view.loads.begin(), view.loads.end());
    std::vector<float>&ratio = watched.load_ratio.emplace_back(), &busy = watched.busy.emplace_back();
    for (size_t g = 0; g < view.loads.size(); ++g) {
      ratio.push_back(max > 0 ? static_cast<float>(view.loads[g]) / static_cast<float>(max) : 0);
      busy.push_back(static_cast<float>(view.local_s[g] / view.seconds));
    }
  };
}

// Those until the pool is empty are the first `steps` of the run.
std::vector<double> Counted(const std::vector<double>& samples, size_t steps) {
  return {samples.begin(), samples.begin() + static_cast<std::ptrdiff_t>(std::min(steps, samples.size()))};
}

// Percent of the time until the pool is empty, by worker.
std::vector<double> Utilisation(const std::vector<std::vector<float>>& share,
                                const std::vector<double>& seconds, size_t steps) {
  std::vector<double> sums(share[0].size());
  double all = 0;
  for (size_t k = 0; k < std::min(steps, share.size()); ++k) {
    all += seconds[k];
    for (size_t g = 0; g < sums.size(); ++g) sums[g] += seconds[k] * static_cast<double>(share[k][g]);
  }
  for (double& sum : sums) sum *= 100 / all;
  return sums;
}

// The variants of policy i are 2 i (until the pool is empty) and 2 i + 1 (the whole work).
struct Study {
  std::vector<Shown> shown;
  std::vector<std::vector<Watched>> watched;  // by policy and seed
  std::vector<Variant> variants;

  static size_t UntilEmpty(size_t policy) { return 2 * policy; }
  static size_t Whole(size_t policy) { return 2 * policy + 1; }
};

size_t CountedSteps(const SeededRuns& runs, size_t policy, size_t seed_index) {
  return runs.run(Study::UntilEmpty(policy), seed_index).at("steps").get<size_t>();
}

SimOptions BaseOptions(const ExperimentContext& context) {
  SimOptions options = context.base;
  options.mode = "overload";
  options.warmup = 0;
  options.steps = 0;
  options.requests = context.Shortened(kRequests, 1'000);
  return options;
}

void PlanStudy(const ExperimentContext& context, Study& study) {
  study.shown = Policies(context);
  study.watched.assign(study.shown.size(), std::vector<Watched>(context.seeds));
  const SimOptions base = BaseOptions(context);
  const auto drawn = DrawnBySeed(context.workloads[0], base.requests);
  for (size_t i = 0; i < study.shown.size(); ++i) {
    const Rule& rule = study.shown[i].rule;
    SimOptions options = WithRule(base, rule);
    options.count_drain = false;
    study.variants.push_back({absl::StrCat(rule.name, ", until the pool is empty"), options, drawn});
    study.variants.back().tap_of_seed = [&study, i](uint64_t seed) {
      return Watch(study.watched[i][seed - 1]);
    };
    options.count_drain = true;
    study.variants.push_back({absl::StrCat(rule.name, ", the whole work"), options, drawn});
  }
}

report::Table EnergyTable(const Study& study, const SeededRuns& runs, bool whole) {
  report::Table table;
  table.title = whole ? "Energy of the whole work" : "Energy until the pool is empty";
  table.note =
      whole ? "Every token of every request, so all policies have done the same; with few requests left "
              "at the end, most of the group idles whatever the policy."
            : "As the authors' script counts; policies leave different work to the end, so compare the "
              "tokens too.";
  absl::StrAppend(&table.note,
                  " +-: half width of the 95 % interval. Change: against the first policy, seed by "
                  "seed.");
  table.columns = {{"policy", ""}};
  for (const PowerName& power : kPowers) {
    table.columns.push_back({absl::StrCat("energy by ", power.name), "kJ", 4});
    table.columns.push_back({"+-", "kJ", 2});
    table.columns.push_back({"change", "%"});
    table.columns.push_back({"+-", "%", 2});
  }
  if (!whole) table.columns.push_back({"energy, paper", "kJ"});
  table.columns.push_back({"time", "s"});
  table.columns.push_back({"+-", "s", 2});
  table.columns.push_back({"tokens", "10^6", 4});
  for (size_t i = 0; i < study.shown.size(); ++i) {
    const size_t variant = whole ? Study::Whole(i) : Study::UntilEmpty(i);
    const size_t first = whole ? Study::Whole(0) : Study::UntilEmpty(0);
    std::vector<report::Cell>& cells = table.rows.emplace_back();
    cells.emplace_back(study.shown[i].rule.name);
    for (const PowerName& power : kPowers) {
      AddEstimate(cells, runs.Mean(variant, power.energy_key), 1e-3);
      const Estimate ratio = runs.Ratio(variant, first, power.energy_key);
      cells.emplace_back(i == 0 ? std::nan("") : 100 * (ratio.mean - 1));
      cells.emplace_back(i == 0 ? std::nan("") : 100 * ratio.half_width);
    }
    if (!whole) cells.emplace_back(study.shown[i].paper_energy_kj);
    AddEstimate(cells, runs.Mean(variant, "simulated_s"));
    cells.emplace_back(1e-6 * runs.Mean(variant, "tokens").mean);
  }
  return table;
}

report::Table PowerTable(const Study& study, const SeededRuns& runs) {
  report::Table table;
  table.title = "Power of a GPU";
  table.note = absl::StrFormat(
      "Until the pool is empty. Mean: energy over time, +- half width of the 95 %% interval over the seeds. "
      "Range: "
      "5 %% and 95 %% of the moving averages over %d steps of all seeds.",
      kWindow);
  table.columns = {{"policy", ""}};
  for (const PowerName& power : kPowers) {
    table.columns.push_back({absl::StrCat("by ", power.name, ", mean"), "W"});
    table.columns.push_back({"+-", "W", 2});
    table.columns.push_back({"from", "W"});
    table.columns.push_back({"to", "W"});
  }
  table.columns.push_back({"range, paper [W]", ""});
  for (size_t i = 0; i < study.shown.size(); ++i) {
    std::vector<report::Cell>& cells = table.rows.emplace_back();
    cells.emplace_back(study.shown[i].rule.name);
    for (size_t p = 0; p < kPowerCount; ++p) {
      std::vector<double> means, smoothed;
      for (size_t s = 0; s < study.watched[i].size(); ++s) {
        const RunJson& run = runs.run(Study::UntilEmpty(i), s);
        means.push_back(run.at(kPowers[p].energy_key).get<double>() / run.at("simulated_s").get<double>() /
                        run.at("workers").get<double>());
        const std::vector<double> one =
            MovingMean(Counted(study.watched[i][s].watts[p], CountedSteps(runs, i, s)), kWindow);
        smoothed.insert(smoothed.end(), one.begin(), one.end());
      }
      AddEstimate(cells, EstimateMean(means));
      cells.emplace_back(QuantileOf(smoothed, 0.05));
      cells.emplace_back(QuantileOf(smoothed, 0.95));
    }
    cells.emplace_back(std::string(study.shown[i].paper_power));
  }
  return table;
}

// Mean over the seeds; workers are alike, so what one differs by is chance and the policy's.
report::Table UtilisationTable(const Study& study, const SeededRuns& runs) {
  report::Table table;
  table.title = "Utilisation of each worker";
  table.note =
      "Until the pool is empty, time-weighted, mean over the seeds and half width of its 95 % interval. "
      "Load: "
      "L_g / max L. At work: the share of the step that the worker is not waiting at the barrier.";
  table.columns = {{"worker", ""}};
  for (const Shown& shown : study.shown) {
    for (const char* what : {"load", "at work"}) {
      table.columns.push_back({absl::StrCat(shown.rule.name, ", ", what), "%"});
      table.columns.push_back({"+-", "%", 2});
    }
  }
  const size_t workers = study.watched[0][0].load_ratio[0].size();
  table.rows.resize(workers);
  for (size_t g = 0; g < workers; ++g) table.rows[g].push_back(static_cast<int64_t>(g));
  for (size_t i = 0; i < study.shown.size(); ++i) {
    for (const bool load : {true, false}) {
      std::vector<std::vector<double>> by_worker(workers);
      for (size_t s = 0; s < study.watched[i].size(); ++s) {
        const Watched& watched = study.watched[i][s];
        const std::vector<double> shares =
            Utilisation(load ? watched.load_ratio : watched.busy, watched.seconds, CountedSteps(runs, i, s));
        for (size_t g = 0; g < workers; ++g) by_worker[g].push_back(shares[g]);
      }
      for (size_t g = 0; g < workers; ++g) AddEstimate(table.rows[g], EstimateMean(by_worker[g]));
    }
  }
  return table;
}

// Share of the group's steps in which every worker draws peak power, percent.
double AtPeak(const std::vector<double>& watts) {
  constexpr double kTolerance = 1e-6;
  const auto at_peak = std::count_if(watts.begin(), watts.end(),
                                     [](double w) { return w > PowerModel{}.peak_w - kTolerance; });
  return 100 * static_cast<double>(at_peak) / static_cast<double>(watts.size());
}

report::Chart PowerChart(const Study& study, const SeededRuns& runs, size_t power) {
  report::Chart chart;
  chart.title = absl::StrCat("Power of a GPU, by ", kPowers[power].name);
  chart.note = absl::StrFormat(
      "Mean over the group, moving average over %d steps, seed 1, until the pool is empty.", kWindow);
  chart.x = {"simulated time", "s"};
  chart.y = {"mean power of a GPU", "W"};
  for (size_t i = 0; i < study.shown.size(); ++i) {
    const Watched& watched = study.watched[i][0];
    const size_t steps = CountedSteps(runs, i, 0);
    std::vector<double> time = Counted(watched.end_s, steps);
    time.erase(time.begin(), time.begin() + static_cast<std::ptrdiff_t>(std::min(kWindow - 1, time.size())));
    const std::vector<double> watts = Counted(watched.watts[power], steps);
    const double at_peak = AtPeak(watts);
    if (at_peak > 50) {
      absl::StrAppendFormat(&chart.note,
                            " %s: x is 1 or more, so cut off, on all workers in %.1f %% of the steps.",
                            study.shown[i].rule.name, at_peak);
    }
    chart.series.push_back(
        {study.shown[i].rule.name, EveryNth(time, kStride), EveryNth(MovingMean(watts, kWindow), kStride)});
  }
  return chart;
}

// One for each power law, to one scale.
std::vector<report::Chart> PowerCharts(const Study& study, const SeededRuns& runs) {
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

std::string DescribeEnergy(const Study& study, const SeededRuns& runs, size_t policy) {
  std::string text = absl::StrCat(study.shown[policy].rule.name, " against ", study.shown[0].rule.name,
                                  ", energy until the pool is empty:");
  for (size_t p = 0; p < kPowerCount; ++p) {
    const Estimate ratio = runs.Ratio(Study::UntilEmpty(policy), Study::UntilEmpty(0), kPowers[p].energy_key);
    absl::StrAppendFormat(&text, "%s %+.1f +- %.1f %% by %s", p == 0 ? "" : ",", 100 * (ratio.mean - 1),
                          100 * ratio.half_width, kPowers[p].name);
  }
  const Estimate whole = runs.Ratio(Study::Whole(policy), Study::Whole(0), kPowers[0].energy_key);
  absl::StrAppendFormat(&text, "; %+.1f +- %.1f %% by %s over the whole work", 100 * (whole.mean - 1),
                        100 * whole.half_width, kPowers[0].name);
  return absl::StrCat(text, ".");
}

}  // namespace

absl::StatusOr<Findings> Fig7(const ExperimentContext& context) {
  Study study;
  PlanStudy(context, study);
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
  findings.tables = {EnergyTable(study, *runs, false), EnergyTable(study, *runs, true),
                     PowerTable(study, *runs), UtilisationTable(study, *runs)};
  findings.charts = PowerCharts(study, *runs);
  return findings;
}

}  // namespace bfio::sim
