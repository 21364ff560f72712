// From a tenth of what the group can serve to more than it can: what each policy does at each load.
//
// Saturation is FullSlotRequestRate (run/workload.h). Requests come when the workload says, the times
// stretched, or as a Poisson process where it says nothing. Above saturation queues grow for as long as the
// run lasts, so waits there belong to its length.
#include <algorithm>
#include <cmath>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "tools/sim/experiment/arrivals.h"
#include "tools/sim/experiment/columns.h"
#include "tools/sim/experiment/experiments.h"
#include "tools/sim/run/workload.h"

namespace bfio::sim {
namespace {

constexpr double kShares[] = {10, 25, 40, 55, 70, 80, 90, 95, 100, 110};

constexpr Metric kMetrics[] = {metrics::kIdle,     metrics::kStep,    metrics::kThroughput,
                               metrics::kSlots,    metrics::kTtftP50, metrics::kTtftP99,
                               metrics::kWaitMean, metrics::kWaitP99, metrics::kWaitMax};

// Rules that look at one request at a time, which a router without a pool can follow.
bool WorksInstantly(const std::string& policy) {
  const auto instant = {"round_robin", "least_requests", "power_of_two", "least_tokens", "vllm"};
  return std::find(instant.begin(), instant.end(), policy) != instant.end();
}

struct Contender {
  std::string policy, dispatch;

  std::string Name() const { return dispatch == "pool" ? policy : absl::StrCat(policy, ", instant"); }
};

std::vector<Contender> Contenders(const ExperimentContext& context) {
  const std::vector<std::string> policies =
      context.PoliciesOr({"fcfs", "round_robin", "least_requests", "power_of_two", "least_tokens", "lpt",
                          "vllm", "trtllm", "bf_io", "bf_io_auto"});
  std::vector<Contender> rules;
  for (const std::string& policy : policies) rules.push_back({policy, "pool"});
  for (const std::string& policy : policies) {
    if (WorksInstantly(policy)) rules.push_back({policy, "instant"});
  }
  return rules;
}

// Rules by loads, and the last column of each: overload.
struct Grid {
  std::vector<Contender> rules;
  std::vector<Variant> variants;

  static constexpr size_t kColumns = std::size(kShares) + 1;
  size_t At(size_t rule, size_t column) const { return rule * kColumns + column; }
  std::vector<size_t> Row(size_t rule) const {
    std::vector<size_t> row;
    for (size_t column = 0; column + 1 < kColumns; ++column) row.push_back(At(rule, column));
    return row;
  }
};

std::string LoadName(size_t column) {
  return column + 1 == Grid::kColumns ? "overload" : absl::StrFormat("%.0f %%", kShares[column]);
}

Grid MakeGrid(const ExperimentContext& context, const Workload& workload) {
  Grid grid;
  grid.rules = Contenders(context);
  const TraceOfSeed traces = ArrivingBySeed(workload);
  for (const Contender& rule : grid.rules) {
    for (size_t column = 0; column < Grid::kColumns; ++column) {
      SimOptions options = context.base;
      options.policy = rule.policy;
      options.dispatch = rule.dispatch;
      options.requests = 0;
      options.steps = StepsOf(context, 50);
      options.warmup = WarmUpOf(context, *workload.trace);
      options.mode = column + 1 == Grid::kColumns ? "overload" : "arrivals";
      if (options.mode == "arrivals") {
        options.load = LoadForShare(*workload.trace, options, kShares[column] / 100);
      }
      grid.variants.push_back({absl::StrCat(rule.Name(), " at ", LoadName(column)), options, traces, {}});
    }
  }
  return grid;
}

report::Table AllCells(const Workload& workload, const Grid& grid, const SeededRuns& runs) {
  report::Table table;
  table.title = absl::StrCat("All loads and policies: ", workload.name);
  table.note =
      "+-: half width of the 95 % interval. Waits in steps, those still waiting at the end included but for "
      "the mean; idle: 1 - mean load / largest load.";
  table.columns = {{"load", ""}, {"policy", ""}, {"dispatch", ""}};
  AddColumns(table, kMetrics);
  for (size_t column = 0; column < Grid::kColumns; ++column) {
    for (size_t rule = 0; rule < grid.rules.size(); ++rule) {
      std::vector<report::Cell>& row = table.rows.emplace_back();
      row = {LoadName(column), grid.rules[rule].policy, grid.rules[rule].dispatch};
      AddCells(row, runs, grid.At(rule, column), kMetrics);
    }
  }
  return table;
}

// Whether a rule's waits are about the first rule's: a p99 of at most 1.2 times, or one step more.
bool Fair(const SeededRuns& runs, size_t variant, size_t first) {
  const double ours = runs.Mean(variant, metrics::kWaitP99.key).mean,
               theirs = runs.Mean(first, metrics::kWaitP99.key).mean;
  return ours <= std::max(1.2 * theirs, theirs + 1);
}

struct Best {
  size_t rule = 0;
  double value = 0;
};

// The least of a metric over the pool rules as fair as the first; `but` is left out.
std::optional<Best> Least(const Grid& grid, const SeededRuns& runs, size_t column, const Metric& metric,
                          const std::string& but) {
  std::optional<Best> best;
  for (size_t rule = 0; rule < grid.rules.size(); ++rule) {
    if (grid.rules[rule].policy == but || grid.rules[rule].dispatch != "pool") continue;
    if (!Fair(runs, grid.At(rule, column), grid.At(0, column))) continue;
    const double value = runs.Mean(grid.At(rule, column), metric.key).mean;
    if (!best || value < best->value) best = Best{rule, value};
  }
  return best;
}

// The last policy named is the one compared with the best of the others.
report::Table BestAtEachLoad(const Workload& workload, const Grid& grid, const SeededRuns& runs) {
  size_t ours = 0;
  for (size_t rule = 0; rule < grid.rules.size(); ++rule) {
    if (grid.rules[rule].dispatch == "pool") ours = rule;
  }
  const std::string& name = grid.rules[ours].policy;
  report::Table table;
  table.title = absl::StrCat(name, " and the best of the others at each load: ", workload.name);
  table.note = absl::StrCat(
      "The others: pool dispatch, p99 wait at most 1.2 times that of ", grid.rules[0].policy,
      " or one step more. Differences are paired by seed; below 0 the last policy is better. +-: half "
      "width of the 95 % interval.");
  table.columns = {{"load", ""},
                   {"shortest steps", ""},
                   {"step time of the last", "%"},
                   {"+-", "%", 2},
                   {"least TTFT p99", ""},
                   {"TTFT p99 of the last", "%"},
                   {"+-", "%", 2},
                   {"p99 wait of the last", "steps"},
                   {"p99 wait of the first", "steps"}};
  for (size_t column = 0; column < Grid::kColumns; ++column) {
    std::vector<report::Cell>& row = table.rows.emplace_back();
    row = {LoadName(column)};
    for (const Metric& metric : {metrics::kStep, metrics::kTtftP99}) {
      const std::optional<Best> best = Least(grid, runs, column, metric, name);
      if (!best) {
        row.insert(row.end(), 3, report::Cell());
        continue;
      }
      row.emplace_back(grid.rules[best->rule].policy);
      const Estimate ratio = runs.Ratio(grid.At(ours, column), grid.At(best->rule, column), metric.key);
      row.emplace_back(100 * (ratio.mean - 1));
      row.emplace_back(100 * ratio.half_width);
    }
    row.emplace_back(runs.Mean(grid.At(ours, column), metrics::kWaitP99.key).mean);
    row.emplace_back(runs.Mean(grid.At(0, column), metrics::kWaitP99.key).mean);
  }
  return table;
}

void AddCharts(const Workload& workload, const Grid& grid, const SeededRuns& runs,
               std::vector<report::Chart>& charts) {
  const report::Axis x = {"load, share of saturation", "%", false, {}, {}, {}};
  std::vector<Line> pool, beside;
  for (size_t rule = 0; rule < grid.rules.size(); ++rule) {
    Line line = {grid.rules[rule].Name(), grid.Row(rule)};
    if (grid.rules[rule].dispatch == "pool") {
      line.strong = rule + 1 == grid.rules.size() || grid.rules[rule + 1].dispatch != "pool";
      pool.push_back(line);
      if (WorksInstantly(grid.rules[rule].policy)) beside.push_back(line);
    } else {
      line.style = report::Series::Style::kDashed;
      beside.push_back(line);
    }
  }
  for (const Metric& metric :
       {metrics::kIdle, metrics::kThroughput, metrics::kTtftP50, metrics::kTtftP99, metrics::kWaitP99}) {
    charts.push_back(LineChart(absl::StrCat(Capital(metric.name), " over load: ", workload.name), x, kShares,
                               metric, runs, pool));
    charts.back().y.log = metric.unit == metrics::kTtftP50.unit;
    if (!charts.back().y.log) charts.back().y.min = 0;
  }
  // Seeds differ in what comes when, policies in what they make of it.
  std::vector<Line> against(pool.begin() + 1, pool.end());
  for (Line& line : against) line.against = pool[0].variants;
  for (const Metric& metric : {metrics::kStep, metrics::kTtftP99}) {
    if (against.empty()) break;
    charts.push_back(
        LineChart(absl::StrCat(Capital(metric.name), " against ", pool[0].name, ": ", workload.name), x,
                  kShares, metric, runs, against));
  }
  if (beside.empty()) return;
  for (const Metric& metric : {metrics::kIdle, metrics::kTtftP99, metrics::kSlots}) {
    charts.push_back(LineChart(
        absl::StrCat("A pool, and each request sent on at once: ", metric.name, ", ", workload.name), x,
        kShares, metric, runs, beside));
    if (metric.unit == metrics::kTtftP50.unit) charts.back().y.log = true;
    charts.back().note =
        "Dashed: instant dispatch; requests wait in a queue of the worker they were sent to.";
  }
}

// What a pool changes at the highest load below saturation.
std::string PoolSentence(const Workload& workload, const Grid& grid, const SeededRuns& runs) {
  constexpr size_t kColumn = 7;
  std::vector<std::string> parts;
  for (size_t rule = 0; rule < grid.rules.size(); ++rule) {
    for (size_t other = 0; other < rule; ++other) {
      if (grid.rules[rule].dispatch == "pool" || grid.rules[other].policy != grid.rules[rule].policy)
        continue;
      parts.push_back(absl::StrFormat("%s %.3g s instantly and %.3g s from a pool", grid.rules[rule].policy,
                                      runs.Mean(grid.At(rule, kColumn), metrics::kTtftP99.key).mean,
                                      runs.Mean(grid.At(other, kColumn), metrics::kTtftP99.key).mean));
    }
  }
  if (parts.empty()) return "";
  return absl::StrCat(workload.name, ", TTFT p99 at ", LoadName(kColumn), ": ", absl::StrJoin(parts, "; "),
                      ".");
}

}  // namespace

absl::StatusOr<Findings> Regimes(const ExperimentContext& context) {
  Findings findings;
  findings.text.emplace_back(
      "Load is a share of saturation: of the requests a second that the group would serve with every slot "
      "taken and perfect balance. In the overload rows the pool is refilled before every decision instead.");
  findings.parameters = CommonParameters(context);
  for (const Workload& workload : context.workloads) {
    const Grid grid = MakeGrid(context, workload);
    absl::StatusOr<SeededRuns> runs = RunSeeds(context, grid.variants);
    if (!runs.ok()) return runs.status();
    findings.tables.push_back(BestAtEachLoad(workload, grid, *runs));
    findings.tables.push_back(AllCells(workload, grid, *runs));
    AddCharts(workload, grid, *runs, findings.charts);
    if (std::string text = PoolSentence(workload, grid, *runs); !text.empty()) findings.text.push_back(text);
    const SimOptions& options = grid.variants[0].options;
    findings.parameters.push_back({absl::StrCat("saturation, ", workload.name),
                                   absl::StrFormat("%.4g requests/s, every slot taken",
                                                   FullSlotRequestRate(*workload.trace, options.workers,
                                                                       options.batch, options.cost))});
    findings.parameters.push_back({absl::StrCat("arrivals, ", workload.name), ArrivalsName(workload)});
    AddRunLength(findings, workload, options);
  }
  findings.parameters.push_back(
      {"reveal, in the overload rows", absl::StrCat(context.base.reveal, " requests")});
  return findings;
}

}  // namespace bfio::sim
