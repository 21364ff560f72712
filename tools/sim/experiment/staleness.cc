// What it costs when reports come late, and when a plan takes effect a step later.
//
// A slot that falls free is empty until somebody has heard of it: with a pool, report_delay steps, and one
// more when pipelined. With instant dispatch the next request waits at the worker, so slots are filled at
// once, but where a request is sent hangs on loads as old as the reports.
#include <algorithm>
#include <cmath>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tools/sim/experiment/arrivals.h"
#include "tools/sim/experiment/columns.h"
#include "tools/sim/experiment/experiments.h"
#include "tools/sim/run/workload.h"

namespace bfio::sim {
namespace {

constexpr double kDelays[] = {0, 1, 2, 4, 8, 16, 32};
// Of saturation, where requests arrive: slots are to spare even when some stand empty unheard of.
constexpr double kShare = 0.7;

constexpr Metric kMetrics[] = {metrics::kImbalance,  metrics::kIdle,   metrics::kStep,
                               metrics::kThroughput, metrics::kSlots,  metrics::kTtftP50,
                               metrics::kTtftP99,    metrics::kWaitP99};

// One way to be late, over all delays.
struct Way {
  std::string policy, mode, dispatch, plan_mode;

  std::string Name() const {
    return absl::StrCat(policy, dispatch == "instant" ? ", instant" : "",
                        plan_mode == "pipelined" ? ", pipelined" : "");
  }
};

std::vector<Way> Overloaded(const ExperimentContext& context) {
  std::vector<Way> ways;
  for (const std::string& policy : context.PoliciesOr({"fcfs", "lpt", "bf_io", "bf_io_auto"})) {
    for (const char* plan_mode : {"lockstep", "pipelined"}) {
      ways.push_back({policy, "overload", "pool", plan_mode});
    }
  }
  return ways;
}

std::vector<Way> Arriving(const ExperimentContext& context) {
  std::vector<Way> ways;
  for (const std::string& policy : context.PoliciesOr(
           {"round_robin", "least_requests", "power_of_two", "least_tokens", "lpt", "bf_io_auto"})) {
    ways.push_back({policy, "arrivals", "instant", "lockstep"});
  }
  for (const std::string& policy : context.PoliciesOr({"least_tokens", "lpt", "bf_io_auto"})) {
    for (const char* plan_mode : {"lockstep", "pipelined"}) {
      ways.push_back({policy, "arrivals", "pool", plan_mode});
    }
  }
  return ways;
}

SimOptions OptionsOf(const ExperimentContext& context, const Workload& workload, const Way& way,
                     double delay) {
  SimOptions options = context.base;
  options.policy = way.policy;
  options.mode = way.mode;
  options.dispatch = way.dispatch;
  options.plan_mode = way.plan_mode;
  options.report_delay = static_cast<int32_t>(delay);
  options.requests = 0;
  options.steps = StepsOf(context, 50);
  options.warmup = WarmUpOf(context, *workload.trace);
  if (way.mode == "arrivals") options.load = LoadForShare(*workload.trace, options, kShare);
  return options;
}

// The share of the time that a slot is taken when each request, E[o] steps long, is followed by `late` steps
// in which nobody knows.
double TakenWhenLate(const Workload& workload, double late) {
  const double steps = MeanOutputTokens(*workload.trace);
  return steps / (steps + late);
}

double Late(const Way& way, double delay) {
  if (way.dispatch == "instant") return 0;
  return delay + (way.plan_mode == "pipelined" ? 1 : 0);
}

size_t At(size_t way, size_t delay) {
  return way * std::size(kDelays) + delay;
}

report::Table CostTable(const std::string& title, const Workload& workload, const std::vector<Way>& ways,
                        const SeededRuns& runs) {
  report::Table table;
  table.title = title;
  table.note =
      "The changes are against the same way without delay, paired by seed. Slots taken, expected: E[o] / "
      "(E[o] + steps until a free slot is known), where requests never run out. +-: half width of the 95 % "
      "interval.";
  table.columns = {{"way", ""},
                   {"report delay", "steps"},
                   {"throughput change", "%"},
                   {"+-", "%", 2},
                   {"step time change", "%"},
                   {"+-", "%", 2},
                   {"slots taken, expected", "%"}};
  AddColumns(table, kMetrics);
  for (size_t way = 0; way < ways.size(); ++way) {
    for (size_t delay = 0; delay < std::size(kDelays); ++delay) {
      std::vector<report::Cell>& row = table.rows.emplace_back();
      row = {ways[way].Name(), static_cast<int64_t>(kDelays[delay])};
      for (const Metric& metric : {metrics::kThroughput, metrics::kStep}) {
        const Estimate ratio = runs.Ratio(At(way, delay), At(way, 0), metric.key);
        row.emplace_back(100 * (ratio.mean - 1));
        row.emplace_back(100 * ratio.half_width);
      }
      const double taken = TakenWhenLate(workload, Late(ways[way], kDelays[delay]));
      row.emplace_back(ways[way].mode == "overload" ? 100 * taken : kEmpty);
      AddCells(row, runs, At(way, delay), kMetrics);
    }
  }
  return table;
}

Line LineOf(const std::vector<Way>& ways, size_t way) {
  Line line;
  line.name = ways[way].Name();
  const bool dashed =
      ways[way].plan_mode == "pipelined" || (ways[way].mode == "arrivals" && ways[way].dispatch == "instant");
  if (dashed) line.style = report::Series::Style::kDashed;
  line.strong = ways[way].policy == "bf_io_auto" && !dashed;
  for (size_t delay = 0; delay < std::size(kDelays); ++delay) line.variants.push_back(At(way, delay));
  return line;
}

const report::Axis kDelayAxis = {"report delay", "steps", false, {}, {}, {}};

void AddCharts(const std::string& where, const std::vector<Way>& ways, const SeededRuns& runs,
               std::initializer_list<Metric> levels, std::initializer_list<Metric> changes,
               std::vector<report::Chart>& charts) {
  std::vector<Line> lines;
  for (size_t way = 0; way < ways.size(); ++way) lines.push_back(LineOf(ways, way));
  for (const Metric& metric : levels) {
    charts.push_back(LineChart(absl::StrCat(Capital(metric.name), " over report delay, ", where), kDelayAxis,
                               kDelays, metric, runs, lines));
  }
  for (Line& line : lines) line.against.assign(line.variants.size(), line.variants[0]);
  for (const Metric& metric : changes) {
    charts.push_back(LineChart(absl::StrCat(Capital(metric.name), " against no delay, ", where), kDelayAxis,
                               kDelays, metric, runs, lines));
  }
}

// The least and the most that the longest delay changes a metric.
std::string Span(const std::vector<Way>& ways, const SeededRuns& runs, const Metric& metric) {
  const size_t last = std::size(kDelays) - 1;
  size_t least = 0, most = 0;
  const auto change = [&](size_t way) {
    return 100 * (runs.Ratio(At(way, last), At(way, 0), metric.key).mean - 1);
  };
  for (size_t way = 1; way < ways.size(); ++way) {
    if (change(way) < change(least)) least = way;
    if (change(way) > change(most)) most = way;
  }
  return absl::StrFormat("%s by %+.1f %% (%s) to %+.1f %% (%s)", metric.name, change(least),
                         ways[least].Name(), change(most), ways[most].Name());
}

std::string Sentence(const std::string& where, const std::vector<Way>& ways, const SeededRuns& runs) {
  return absl::StrFormat("%s: reports %.0f steps late change %s, %s and %s.", Capital(where),
                         kDelays[std::size(kDelays) - 1], Span(ways, runs, metrics::kThroughput),
                         Span(ways, runs, metrics::kStep), Span(ways, runs, metrics::kImbalance));
}

}  // namespace

absl::StatusOr<Findings> Staleness(const ExperimentContext& context) {
  Findings findings;
  findings.text.push_back(absl::StrFormat(
      "Reports of a step reach the router so many steps later; pipelined plans take effect one step later "
      "still. First with requests that never run out and a pool, then at %.0f %% of saturation with a pool "
      "and with instant dispatch.",
      100 * kShare));
  findings.parameters = CommonParameters(context);
  SimOptions options;
  for (const Workload& workload : context.workloads) {
    const std::vector<Way> overloaded = Overloaded(context), arriving = Arriving(context);
    std::vector<Variant> full, spare;
    const TraceOfSeed rotated = RotatedBySeed(workload), traces = ArrivingBySeed(workload);
    const auto add = [&](const std::vector<Way>& ways, const TraceOfSeed& trace,
                         std::vector<Variant>& variants) {
      for (const Way& way : ways) {
        for (double delay : kDelays) {
          options = OptionsOf(context, workload, way, delay);
          variants.push_back(
              {absl::StrCat(way.mode, ", ", way.Name(), ", ", delay, " steps late"), options, trace, {}});
        }
      }
    };
    add(overloaded, rotated, full);
    add(arriving, traces, spare);
    absl::StatusOr<SeededRuns> full_runs = RunSeeds(context, full);
    if (!full_runs.ok()) return full_runs.status();
    absl::StatusOr<SeededRuns> spare_runs = RunSeeds(context, spare);
    if (!spare_runs.ok()) return spare_runs.status();
    const std::string in_full = absl::StrCat("overload, ", workload.name),
                      in_spare = absl::StrFormat("%.0f %% load, %s", 100 * kShare, workload.name);
    findings.text.push_back(Sentence(in_full, overloaded, *full_runs));
    findings.text.push_back(Sentence(in_spare, arriving, *spare_runs));
    findings.tables.push_back(
        CostTable(absl::StrCat("Late reports: ", in_full), workload, overloaded, *full_runs));
    findings.tables.push_back(
        CostTable(absl::StrCat("Late reports: ", in_spare), workload, arriving, *spare_runs));
    AddCharts(in_full, overloaded, *full_runs, {metrics::kImbalance, metrics::kSlots}, {metrics::kThroughput},
              findings.charts);
    AddCharts(in_spare, arriving, *spare_runs, {metrics::kImbalance}, {metrics::kStep, metrics::kTtftP99},
              findings.charts);
    findings.parameters.push_back({absl::StrCat("E[o], ", workload.name),
                                   absl::StrFormat("%.4g steps", MeanOutputTokens(*workload.trace))});
    findings.parameters.push_back({absl::StrCat("arrivals, ", workload.name), ArrivalsName(workload)});
    AddRunLength(findings, workload, options);
  }
  findings.parameters.push_back({"reveal, overload", absl::StrCat(options.reveal, " requests")});
  findings.parameters.push_back({"bf_io", absl::StrCat("objective ", options.objective, ", horizon ",
                                                       options.horizon, ", lookahead ", options.lookahead)});
  return findings;
}

}  // namespace bfio::sim
