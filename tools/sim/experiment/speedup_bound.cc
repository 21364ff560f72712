// How near each policy comes to the step that perfect balance would give.
//
// Of the same work: a rule is compared with the balanced step of what it admitted itself, so leaving large
// requests waiting earns it nothing. What FCFS takes longer than its balanced step is the possible gain; a
// policy's share of it is what it does not lose in turn. Equal workers, unequal ones whose speeds the policy
// is told or not, and workers whose times scatter, of which no placement can win back anything.
#include <cmath>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tools/sim/experiment/arrivals.h"
#include "tools/sim/experiment/columns.h"
#include "tools/sim/experiment/experiments.h"
#include "tools/sim/experiment/rule.h"
#include "tools/sim/experiment/theory.h"

namespace bfio::sim {
namespace {

constexpr Metric kBalanced{"balanced_step_s_mean", "balanced step", "ms", 1e3};
constexpr Metric kMetrics[] = {metrics::kStep, kBalanced, metrics::kThroughput, metrics::kWaitP99};

struct Machines {
  const char* name;
  std::vector<double> speeds;
  bool tell_speeds = true;
  double jitter = 0;
};

std::vector<Machines> AllMachines() {
  return {{"equal", {}},
          {"speeds 1, 1, 0.7, told", {1, 1, 0.7}},
          {"speeds 1, 1, 0.7, not told", {1, 1, 0.7}, false},
          {"jitter 0.05", {}, true, 0.05}};
}

// The first is what the others are compared with.
std::vector<Rule> Rules(const ExperimentContext& context) {
  std::vector<Rule> rules = {{"fcfs", "fcfs", ""}};
  const std::vector<Rule> own = {{"round_robin", "round_robin", ""},
                                 {"least_tokens", "least_tokens", ""},
                                 {"lpt", "lpt", ""},
                                 {"trtllm", "trtllm", ""},
                                 {"br0", "br0", ""},
                                 PaperBfIo(0),
                                 PaperBfIo(20, 0.7),
                                 {"bf_io square", "bf_io", "square"},
                                 {"bf_io_auto", "bf_io_auto", ""}};
  for (const Rule& rule : RulesOr(context, own)) {
    if (rule.policy != "fcfs") rules.push_back(rule);
  }
  return rules;
}

// Seconds that a step is longer than a balanced one, by seed.
std::vector<double> Excess(const SeededRuns& runs, size_t variant) {
  std::vector<double> excess = runs.Values(variant, metrics::kStep.key);
  const std::vector<double> balanced = runs.Values(variant, kBalanced.key);
  for (size_t i = 0; i < excess.size(); ++i) excess[i] -= balanced[i];
  return excess;
}

Estimate ShareOfGain(const SeededRuns& runs, size_t variant, size_t fcfs) {
  std::vector<double> shares = Excess(runs, variant);
  const std::vector<double> possible = Excess(runs, fcfs);
  for (size_t i = 0; i < shares.size(); ++i) shares[i] = 1 - shares[i] / possible[i];
  return EstimateMean(shares);
}

// What perfect balance would keep: all but the wait for the unluckiest worker.
Estimate AttainableShare(const SeededRuns& runs, size_t fcfs, const Machines& machines, int64_t workers) {
  const double s = machines.jitter;
  const double luck =
      s == 0 ? 0
             : ExpectedOfLargestNormal(workers, [s](double x) { return std::exp(s * x - 0.5 * s * s); }) - 1;
  std::vector<double> shares = runs.Values(fcfs, kBalanced.key);
  const std::vector<double> possible = Excess(runs, fcfs);
  for (size_t i = 0; i < shares.size(); ++i) shares[i] = 1 - luck * shares[i] / possible[i];
  return EstimateMean(shares);
}

struct Grid {
  std::vector<Machines> machines = AllMachines();
  std::vector<Rule> rules;
  std::vector<Variant> variants;

  size_t At(size_t machine, size_t rule) const { return machine * rules.size() + rule; }
};

Grid MakeGrid(const ExperimentContext& context, const Workload& workload) {
  Grid grid;
  grid.rules = Rules(context);
  const TraceOfSeed rotated = RotatedBySeed(workload);
  for (const Machines& machines : grid.machines) {
    for (const Rule& rule : grid.rules) {
      SimOptions options = WithRule(context.base, rule);
      options.mode = "overload";
      options.requests = 0;
      options.steps = StepsOf(context, 50);
      options.warmup = WarmUpOf(context, *workload.trace);
      options.speeds = machines.speeds;
      options.tell_speeds = machines.tell_speeds;
      options.jitter = machines.jitter;
      grid.variants.push_back({absl::StrCat(rule.name, ", ", machines.name), options, rotated, {}});
    }
  }
  return grid;
}

report::Table ShareTable(const Workload& workload, const Grid& grid, const SeededRuns& runs,
                         int64_t workers) {
  report::Table table;
  table.title = absl::StrCat("Steps beside perfect balance: ", workload.name);
  table.note =
      "Excess: step time over the balanced step of the same work. Share of the gain: 1 - excess / FCFS's "
      "excess, paired by seed; attainable: the same for perfect balance. +-: half width of the 95 % "
      "interval.";
  table.columns = {
      {"workers", ""}, {"policy", ""}, {"share of the gain", "%"},       {"+-", "%", 2}, {"attainable", "%"},
      {"excess", "%"}, {"+-", "%", 2}, {"throughput against FCFS", "%"}, {"+-", "%", 2}};
  AddColumns(table, kMetrics);
  for (size_t m = 0; m < grid.machines.size(); ++m) {
    const size_t fcfs = grid.At(m, 0);
    for (size_t rule = 0; rule < grid.rules.size(); ++rule) {
      const size_t variant = grid.At(m, rule);
      std::vector<report::Cell>& row = table.rows.emplace_back();
      row = {std::string(grid.machines[m].name), grid.rules[rule].name};
      AddEstimate(row, ShareOfGain(runs, variant, fcfs), 100);
      row.emplace_back(100 * AttainableShare(runs, fcfs, grid.machines[m], workers).mean);
      const Estimate excess = EstimateRatio(Excess(runs, variant), runs.Values(variant, kBalanced.key));
      AddEstimate(row, excess, 100);
      const Estimate throughput = runs.Ratio(variant, fcfs, metrics::kThroughput.key);
      row.emplace_back(100 * (throughput.mean - 1));
      row.emplace_back(100 * throughput.half_width);
      AddCells(row, runs, variant, kMetrics);
    }
  }
  return table;
}

report::Chart ShareChart(const Workload& workload, const Grid& grid, const SeededRuns& runs,
                         int64_t workers) {
  report::Chart chart;
  chart.title = absl::StrCat("Share of the possible gain over FCFS: ", workload.name);
  chart.note = "100 %: every step as short as perfect balance of the same work would make it.";
  chart.kind = report::Chart::Kind::kBars;
  chart.x.label = "policy";
  chart.y.label = "share of the gain";
  chart.y.unit = "%";
  for (size_t rule = 1; rule < grid.rules.size(); ++rule) chart.x.categories.push_back(grid.rules[rule].name);
  for (size_t m = 0; m < grid.machines.size(); ++m) {
    report::Series& series = chart.series.emplace_back();
    series.name = grid.machines[m].name;
    for (size_t rule = 1; rule < grid.rules.size(); ++rule) {
      AddPoint(series, static_cast<double>(rule), ShareOfGain(runs, grid.At(m, rule), grid.At(m, 0)), 100);
    }
    if (grid.machines[m].jitter == 0) continue;
    chart.references.push_back({absl::StrCat("perfect balance, ", grid.machines[m].name),
                                100 * AttainableShare(runs, grid.At(m, 0), grid.machines[m], workers).mean});
  }
  return chart;
}

report::Chart ExcessChart(const Workload& workload, const Grid& grid, const SeededRuns& runs) {
  report::Chart chart;
  chart.title = absl::StrCat("Step time over the balanced step: ", workload.name);
  chart.kind = report::Chart::Kind::kBars;
  chart.x.label = "policy";
  chart.y.label = "excess over the balanced step";
  chart.y.unit = "%";
  for (const Rule& rule : grid.rules) chart.x.categories.push_back(rule.name);
  for (size_t m = 0; m < grid.machines.size(); ++m) {
    report::Series& series = chart.series.emplace_back();
    series.name = grid.machines[m].name;
    for (size_t rule = 0; rule < grid.rules.size(); ++rule) {
      const size_t variant = grid.At(m, rule);
      AddPoint(series, static_cast<double>(rule),
               EstimateRatio(Excess(runs, variant), runs.Values(variant, kBalanced.key)), 100);
    }
  }
  return chart;
}

std::string Sentence(const Workload& workload, const Grid& grid, const SeededRuns& runs) {
  const Estimate possible = EstimateRatio(Excess(runs, 0), runs.Values(0, kBalanced.key));
  const size_t last = grid.rules.size() - 1;
  const Estimate share = ShareOfGain(runs, last, 0);
  return absl::StrFormat(
      "%s, equal workers: FCFS's steps are %.1f %% +- %.1f longer than balanced ones; %s wins back %.1f %% "
      "+- %.1f "
      "of that.",
      workload.name, 100 * possible.mean, 100 * possible.half_width, grid.rules[last].name, 100 * share.mean,
      100 * share.half_width);
}

}  // namespace

absl::StatusOr<Findings> SpeedupBound(const ExperimentContext& context) {
  Findings findings;
  findings.text.push_back(
      "Every slot taken. The balanced step is C + t_l * mean load for equal workers; for unequal ones, the "
      "time "
      "after which all would end together.");
  findings.parameters = CommonParameters(context);
  SimOptions options;
  for (const Workload& workload : context.workloads) {
    const Grid grid = MakeGrid(context, workload);
    options = grid.variants[0].options;
    absl::StatusOr<SeededRuns> runs = RunSeeds(context, grid.variants);
    if (!runs.ok()) return runs.status();
    findings.text.push_back(Sentence(workload, grid, *runs));
    findings.tables.push_back(ShareTable(workload, grid, *runs, options.workers));
    AddRunLength(findings, workload, options);
    findings.charts.push_back(ShareChart(workload, grid, *runs, options.workers));
    findings.charts.push_back(ExcessChart(workload, grid, *runs));
  }
  findings.parameters.push_back({"reveal", absl::StrCat(options.reveal, " requests")});
  return findings;
}

}  // namespace bfio::sim
