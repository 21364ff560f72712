// BF-IO paper, Figure 4: imbalance against the length H of the window.
//
// The paper plots H = 0 to 500 to show that a moderate window is best, without saying how many requests or
// which discount. Here: requests drawn with replacement, every length known, averages until the pool empties,
// and beside the paper's J the same with weights 0.7^h (which the authors' code has in another form), our
// objectives, and FCFS.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tools/sim/experiment/columns.h"
#include "tools/sim/experiment/experiments.h"
#include "tools/sim/experiment/rule.h"

namespace bfio::sim {
namespace {

constexpr int32_t kHorizons[] = {0, 1, 2, 5, 10, 20, 40, 60, 80, 120, 200, 300, 500};
// 0.7^40 is 6e-7: beyond, nothing is left to weigh.
constexpr int32_t kLongestDiscounted = 40;
constexpr int32_t kLongestRefill = 80;
// The chart that shows what happens at small H.
constexpr int32_t kCloseUp = 40;
// Table 1 has 100,000; H = 500 takes a fifth of all the time with these.
constexpr int64_t kRequests = 60'000;

// The curves of one objective, and rules that have no H: drawn as level lines.
struct Curve {
  std::string name;
  std::vector<Rule> rules;
  bool level = false;
};

template <typename MakeRule>
Curve OverHorizons(const std::string& name, int32_t longest, const MakeRule& make) {
  Curve curve{name, {}};
  for (const int32_t horizon : kHorizons) {
    if (horizon <= longest) curve.rules.push_back(make(horizon));
  }
  return curve;
}

std::vector<Curve> Curves(const ExperimentContext& context) {
  std::vector<Curve> curves;
  curves.push_back(OverHorizons("the paper's J", *std::prev(std::end(kHorizons)),
                                [](int32_t horizon) { return PaperBfIo(horizon); }));
  curves.push_back(OverHorizons("J with weights 0.7^h", kLongestDiscounted,
                                [](int32_t horizon) { return PaperBfIo(horizon, 0.7); }));
  curves.push_back(OverHorizons("refill", kLongestRefill, [](int32_t horizon) {
    return Rule{"refill", "bf_io", "refill", horizon, 1, horizon > 0 ? "oracle" : "none"};
  }));
  const std::vector<Rule> level =
      RulesOr(context, {{"square", "bf_io", "square"}, {"bf_io_auto", "bf_io_auto"}, {"FCFS", "fcfs"}});
  for (const Rule& rule : level) curves.push_back({rule.name, {rule}, true});
  return curves;
}

SimOptions BaseOptions(const ExperimentContext& context) {
  SimOptions options = context.base;
  options.mode = "overload";
  options.warmup = 0;
  options.steps = 0;
  options.requests = context.Shortened(kRequests, 400);
  return options;
}

// Of the paper's Table 1, tokens.
std::optional<double> PaperImbalance(const Rule& rule) {
  if (rule.policy == "fcfs") return 27.9e4;
  if (rule.objective != "paper" || rule.discount != 1) return std::nullopt;
  if (rule.horizon == 0) return 2.92e4;
  if (rule.horizon == 20) return 1.65e4;
  return std::nullopt;
}

// The variants of each curve, in the order of its rules.
struct Sweep {
  std::vector<Curve> curves;
  std::vector<Variant> variants;
  std::vector<std::vector<size_t>> variants_of_curve;
};

Sweep PlanSweep(const ExperimentContext& context) {
  Sweep sweep;
  sweep.curves = Curves(context);
  const SimOptions base = BaseOptions(context);
  const auto drawn = DrawnBySeed(context.workloads[0], base.requests);
  for (const Curve& curve : sweep.curves) {
    std::vector<size_t>& indexes = sweep.variants_of_curve.emplace_back();
    for (const Rule& rule : curve.rules) {
      indexes.push_back(sweep.variants.size());
      sweep.variants.push_back(
          {absl::StrCat(curve.name, ", H=", rule.horizon), WithRule(base, rule), drawn, {}});
    }
  }
  return sweep;
}

constexpr Metric kMetrics[] = {metrics::kImbalance, metrics::kIdle, metrics::kThroughput, metrics::kWaitP99,
                               metrics::kWaitMax};

report::Table MakeTable(const Sweep& sweep, const SeededRuns& runs) {
  report::Table table;
  table.title = "Imbalance by window";
  table.note =
      "+-: half width of the 95 % interval. The paper's figure has no values to read; its column holds the "
      "two windows and FCFS of its Table 1, which are averages over more requests of its BurstGPT sample.";
  table.columns = {{"objective or policy", ""}, {"H", "steps"}};
  AddColumns(table, kMetrics);
  table.columns.push_back({"imbalance, paper", "10^4 tokens"});
  for (size_t c = 0; c < sweep.curves.size(); ++c) {
    const Curve& curve = sweep.curves[c];
    for (size_t i = 0; i < curve.rules.size(); ++i) {
      std::vector<report::Cell>& cells = table.rows.emplace_back();
      cells.emplace_back(curve.name);
      if (curve.level) {
        cells.emplace_back();
      } else {
        cells.emplace_back(int64_t{curve.rules[i].horizon});
      }
      AddCells(cells, runs, sweep.variants_of_curve[c][i], kMetrics);
      cells.emplace_back(PaperImbalance(curve.rules[i]).value_or(std::nan("")) * metrics::kImbalance.scale);
    }
  }
  return table;
}

// H up to `longest`. Level lines that lie far above the curves would press them flat: the table has them.
report::Chart MakeChart(const Sweep& sweep, const SeededRuns& runs, int32_t longest) {
  constexpr double kFarAbove = 3;
  report::Chart chart;
  chart.title = absl::StrCat("Imbalance by window, H = 0 to ", longest);
  chart.note = "Bands: 95 % intervals over the seeds. Points: the paper's Table 1.";
  chart.x = {"window H", "steps"};
  chart.y = {metrics::kImbalance.name, metrics::kImbalance.unit};
  chart.y.min = 0;
  double highest = 0;
  report::Series paper;
  paper.name = "in the paper's Table 1";
  paper.style = report::Series::Style::kPoints;
  for (size_t c = 0; c < sweep.curves.size(); ++c) {
    const Curve& curve = sweep.curves[c];
    if (curve.level) continue;
    report::Series& series = chart.series.emplace_back();
    series.name = curve.name;
    for (size_t i = 0; i < curve.rules.size() && curve.rules[i].horizon <= longest; ++i) {
      const double x = curve.rules[i].horizon;
      const Estimate imbalance = runs.Mean(sweep.variants_of_curve[c][i], metrics::kImbalance.key);
      AddPoint(series, x, imbalance, metrics::kImbalance.scale);
      highest = std::max(highest, series.y.back());
      if (const auto printed = PaperImbalance(curve.rules[i])) {
        paper.x.push_back(x);
        paper.y.push_back(*printed * metrics::kImbalance.scale);
      }
    }
  }
  for (size_t c = 0; c < sweep.curves.size(); ++c) {
    if (!sweep.curves[c].level) continue;
    const double y =
        runs.Mean(sweep.variants_of_curve[c][0], metrics::kImbalance.key).mean * metrics::kImbalance.scale;
    if (y < kFarAbove * highest) chart.references.push_back({sweep.curves[c].name, y});
  }
  chart.series.push_back(paper);
  return chart;
}

std::string DescribeBest(const Sweep& sweep, const SeededRuns& runs, size_t curve) {
  const auto of = [&](size_t i) {
    return runs.Mean(sweep.variants_of_curve[curve][i], metrics::kImbalance.key);
  };
  const size_t count = sweep.curves[curve].rules.size();
  size_t best = 0;
  for (size_t i = 1; i < count; ++i) {
    if (of(i).mean < of(best).mean) best = i;
  }
  constexpr double kScale = metrics::kImbalance.scale;
  return absl::StrFormat(
      "%s: least imbalance at H = %d, %.2f +- %.2f x 10^4 tokens; %.2f +- %.2f at H = 0, %.2f +- %.2f at H "
      "= %d.",
      sweep.curves[curve].name, sweep.curves[curve].rules[best].horizon, kScale * of(best).mean,
      kScale * of(best).half_width, kScale * of(0).mean, kScale * of(0).half_width,
      kScale * of(count - 1).mean, kScale * of(count - 1).half_width,
      sweep.curves[curve].rules.back().horizon);
}

}  // namespace

absl::StatusOr<Findings> Fig4(const ExperimentContext& context) {
  const Sweep sweep = PlanSweep(context);
  absl::StatusOr<SeededRuns> runs = RunSeeds(context, sweep.variants);
  if (!runs.ok()) return runs.status();
  Findings findings;
  findings.text.push_back(absl::StrCat(
      "Average imbalance of BF-IO against the steps H that it looks ahead, every length being known. "
      "Requests drawn with replacement from ",
      context.workloads[0].name, "; the paper says that a moderate window strikes the right balance."));
  for (size_t c = 0; c < sweep.curves.size(); ++c) {
    if (!sweep.curves[c].level) findings.text.push_back(DescribeBest(sweep, *runs, c));
  }
  findings.parameters = CommonParameters(context);
  findings.parameters.emplace_back("workload", context.workloads[0].name);
  findings.parameters.emplace_back(
      "requests", absl::StrCat(sweep.variants[0].options.requests, ", Table 1 has 100,000: H = 500 is slow"));
  findings.parameters.emplace_back("counted", "from the first step until the pool is empty");
  findings.parameters.emplace_back("reveal target R", absl::StrCat(context.base.reveal));
  findings.parameters.emplace_back("lookahead where H > 0", "oracle: every length is known");
  findings.parameters.emplace_back(
      "weights 0.7^h", absl::StrCat("up to H = ", kLongestDiscounted, ", where a weight is below 10^-6"));
  findings.tables = {MakeTable(sweep, *runs)};
  findings.charts = {MakeChart(sweep, *runs, *std::prev(std::end(kHorizons))),
                     MakeChart(sweep, *runs, kCloseUp)};
  return findings;
}

}  // namespace bfio::sim
