// What a prediction of lengths must be worth to pay.
//
// bf_io with a horizon, told lengths exactly, told them wrong, guessing from what ended before, or from hints
// of several qualities, beside itself without any and beside bf_io_auto, which asks for none: the line to
// beat. With every slot taken, and at 70 % load, where slots are to spare.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tools/sim/experiment/arrivals.h"
#include "tools/sim/experiment/columns.h"
#include "tools/sim/experiment/experiments.h"
#include "tools/sim/experiment/rule.h"

namespace bfio::sim {
namespace {

constexpr double kShare = 0.7;

constexpr Metric kMetrics[] = {metrics::kImbalance,  metrics::kIdle,    metrics::kStep,
                               metrics::kThroughput, metrics::kWaitP99, metrics::kWaitMax};

struct Predictor {
  std::string name;
  std::string lookahead;
  double error = 0;
  double lead = 8, noise = 0.5;
};

constexpr double kErrors[] = {0, 0.1, 0.25, 0.5, 1};

std::vector<Predictor> Predictors() {
  std::vector<Predictor> all;
  for (double error : kErrors) {
    all.push_back(
        {error == 0 ? "oracle" : absl::StrFormat("oracle +-%.0f %%", 100 * error), "oracle", error});
  }
  all.push_back({"survival", "survival"});
  constexpr double kHints[][2] = {{4, 0.5}, {8, 0}, {8, 0.5}, {8, 2}, {32, 0.5}};
  for (const auto& [lead, noise] : kHints) {
    all.push_back({absl::StrFormat("hint %g, noise %g", lead, noise), "hint", 0, lead, noise});
  }
  return all;
}

// bf_io's settings that look ahead.
std::vector<Rule> Looking(bool all) {
  const auto rule = [](const char* objective, int32_t horizon, double discount) {
    return Rule{absl::StrCat(objective, " H=", horizon,
                             discount == 1 ? "" : absl::StrCat(", weights ", discount, "^h")),
                "bf_io",
                objective,
                horizon,
                discount,
                ""};
  };
  std::vector<Rule> rules = {rule("paper", 5, 0.7), rule("paper", 20, 0.7), rule("refill", 20, 0.9)};
  if (all) {
    rules.push_back(rule("paper", 10, 0.7));
    for (int32_t horizon : {5, 10, 20}) rules.push_back(rule("paper", horizon, 1));
    rules.push_back(rule("square", 10, 0.7));
  }
  return rules;
}

// Rules that ask for no prediction. The last is the line to beat.
std::vector<Rule> Blind(const ExperimentContext& context) {
  std::vector<Rule> rules = {{"fcfs", "fcfs", ""},
                             {"lpt", "lpt", ""},
                             {"paper H=0", "bf_io", "paper"},
                             {"square H=0", "bf_io", "square"}};
  for (const std::string& policy : context.PoliciesOr({"bf_io_auto"})) rules.push_back({policy, policy, ""});
  return rules;
}

// The runs of one load: each blind rule, then each looking one with each predictor.
struct Grid {
  std::string where;
  std::vector<Rule> blind, looking;
  std::vector<Predictor> predictors = Predictors();
  std::vector<Variant> variants;

  size_t Line() const { return blind.size() - 1; }
  size_t At(size_t rule, size_t predictor) const {
    return blind.size() + rule * predictors.size() + predictor;
  }
};

Grid MakeGrid(const ExperimentContext& context, const Workload& workload, bool full) {
  Grid grid;
  grid.where = full ? absl::StrCat("every slot taken, ", workload.name)
                    : absl::StrFormat("%.0f %% load, %s", 100 * kShare, workload.name);
  grid.blind = Blind(context);
  grid.looking = Looking(full);
  SimOptions options = context.base;
  options.requests = 0;
  options.steps = StepsOf(context, 50);
  options.warmup = WarmUpOf(context, *workload.trace);
  options.mode = full ? "overload" : "arrivals";
  if (!full) options.load = LoadForShare(*workload.trace, options, kShare);
  const TraceOfSeed traces = full ? RotatedBySeed(workload) : ArrivingBySeed(workload);
  for (const Rule& rule : grid.blind)
    grid.variants.push_back({rule.name, WithRule(options, rule), traces, {}});
  for (const Rule& rule : grid.looking) {
    for (const Predictor& predictor : grid.predictors) {
      SimOptions looking = WithRule(options, rule);
      looking.lookahead = predictor.lookahead;
      looking.prediction_error = predictor.error;
      looking.hint_lead = predictor.lead;
      looking.hint_noise = predictor.noise;
      grid.variants.push_back({absl::StrCat(rule.name, ", ", predictor.name), looking, traces, {}});
    }
  }
  return grid;
}

report::Table AllCells(const Grid& grid, const SeededRuns& runs) {
  report::Table table;
  table.title = absl::StrCat("Rules and predictors: ", grid.where);
  table.note = absl::StrCat("Imbalance against ", grid.blind.back().name,
                            ": below 1 is better, paired by seed. Waits in steps, those still waiting at the "
                            "end included. +-: half "
                            "width of the 95 % interval.");
  table.columns = {{"rule", ""}, {"predictor", ""}, {"imbalance against the line", ""}, {"+-", "", 2}};
  AddColumns(table, kMetrics);
  const auto add = [&](const std::string& rule, const std::string& predictor, size_t variant) {
    std::vector<report::Cell>& row = table.rows.emplace_back();
    row = {rule, predictor};
    AddEstimate(row, runs.Ratio(variant, grid.Line(), metrics::kImbalance.key));
    AddCells(row, runs, variant, kMetrics);
  };
  for (size_t rule = 0; rule < grid.blind.size(); ++rule) add(grid.blind[rule].name, "none", rule);
  for (size_t rule = 0; rule < grid.looking.size(); ++rule) {
    for (size_t predictor = 0; predictor < grid.predictors.size(); ++predictor) {
      add(grid.looking[rule].name, grid.predictors[predictor].name, grid.At(rule, predictor));
    }
  }
  return table;
}

// Whether a metric is smaller than a rule's beyond doubt: the whole interval of the ratio is below 1.
bool Beats(const SeededRuns& runs, size_t variant, size_t base, const Metric& metric) {
  return runs.Ratio(variant, base, metric.key).high() < 1;
}

// The rule without a prediction that has the least of a metric.
size_t BestBlind(const Grid& grid, const SeededRuns& runs, const Metric& metric) {
  size_t best = 0;
  for (size_t rule = 1; rule < grid.blind.size(); ++rule) {
    if (runs.Mean(rule, metric.key).mean < runs.Mean(best, metric.key).mean) best = rule;
  }
  return best;
}

// The largest error up to which every smaller one beats the base too.
std::optional<double> WorstThatPays(const Grid& grid, const SeededRuns& runs, size_t rule, size_t base,
                                    const Metric& metric) {
  std::optional<double> worst;
  for (size_t i = 0; i < std::size(kErrors); ++i) {
    if (!Beats(runs, grid.At(rule, i), base, metric)) break;
    worst = kErrors[i];
  }
  return worst;
}

report::Table Worth(const Grid& grid, const SeededRuns& runs) {
  constexpr Metric kJudged = metrics::kImbalance;
  const size_t bases[] = {grid.Line(), BestBlind(grid, runs, kJudged)};
  report::Table table;
  table.title = absl::StrCat("What a prediction must be worth: ", grid.where);
  table.note = absl::StrCat(
      "Which predictions leave less imbalance than the line to beat, and than the best rule that asks for "
      "none: "
      "the 95 % interval of the ratio, paired by seed, lies below 1. Empty: not even known lengths. Waits "
      "are "
      "another matter: see the table of all cells.");
  table.columns = {{"rule", ""}};
  for (size_t base : bases) {
    table.columns.push_back({absl::StrCat("largest error that beats ", grid.blind[base].name), "%"});
    table.columns.push_back({"others that do", ""});
  }
  for (size_t rule = 0; rule < grid.looking.size(); ++rule) {
    std::vector<report::Cell>& row = table.rows.emplace_back();
    row = {grid.looking[rule].name};
    for (size_t base : bases) {
      const std::optional<double> worst = WorstThatPays(grid, runs, rule, base, kJudged);
      row.emplace_back(worst ? 100 * *worst : kEmpty);
      std::string others;
      for (size_t i = std::size(kErrors); i < grid.predictors.size(); ++i) {
        if (!Beats(runs, grid.At(rule, i), base, kJudged)) continue;
        absl::StrAppend(&others, others.empty() ? "" : "; ", grid.predictors[i].name);
      }
      row.emplace_back(others.empty() ? "none" : others);
    }
  }
  return table;
}

// Where loads come and go alike for all, levels hide what rules make of them: then each is shown against the
// line.
report::Chart OverError(const Grid& grid, const SeededRuns& runs, const Metric& metric,
                        bool against_the_line) {
  std::vector<double> errors;
  for (double error : kErrors) errors.push_back(100 * error);
  std::vector<Line> lines;
  for (size_t rule = 0; rule < grid.looking.size(); ++rule) {
    Line& line = lines.emplace_back();
    line.name = grid.looking[rule].name;
    for (size_t i = 0; i < errors.size(); ++i) line.variants.push_back(grid.At(rule, i));
    if (against_the_line) line.against.assign(errors.size(), grid.Line());
  }
  report::Chart chart =
      LineChart(absl::StrCat(Capital(metric.name), " when lengths are told wrong: ", grid.where),
                {"lengths are wrong by up to", "%", false, {}, {}, {}}, errors, metric, runs, lines);
  for (size_t rule = 1; rule < grid.blind.size(); ++rule) {
    const double level = against_the_line ? 100 * (runs.Ratio(rule, grid.Line(), metric.key).mean - 1)
                                          : metric.scale * runs.Mean(rule, metric.key).mean;
    chart.references.push_back({absl::StrCat(grid.blind[rule].name, ", no prediction"), level});
  }
  return chart;
}

// How much more than the line each rule has with each predictor.
report::Chart Bars(const Grid& grid, const SeededRuns& runs, const Metric& metric) {
  // More bars than these cannot be told apart; the table has all.
  constexpr size_t kMostRules = 4;
  report::Chart chart;
  chart.title =
      absl::StrCat(Capital(metric.name), " against ", grid.blind.back().name, ", by predictor: ", grid.where);
  chart.note = "Below 0 the prediction pays. Paired by seed, with the 95 % interval.";
  chart.kind = report::Chart::Kind::kBars;
  chart.x.label = "predictor";
  chart.y.label = absl::StrCat("change of ", metric.name);
  chart.y.unit = "%";
  for (const Predictor& predictor : grid.predictors) chart.x.categories.push_back(predictor.name);
  for (size_t rule = 0; rule < std::min(kMostRules, grid.looking.size()); ++rule) {
    report::Series& series = chart.series.emplace_back();
    series.name = grid.looking[rule].name;
    for (size_t i = 0; i < grid.predictors.size(); ++i) {
      Estimate change = runs.Ratio(grid.At(rule, i), grid.Line(), metric.key);
      change.mean -= 1;
      AddPoint(series, static_cast<double>(i), change, 100);
    }
  }
  return chart;
}

// How many cells beat the line and the best rule without a prediction, and the best of them.
std::string Sentence(const Grid& grid, const SeededRuns& runs) {
  const size_t blind = BestBlind(grid, runs, metrics::kImbalance);
  size_t less = 0, less_than_blind = 0, best = grid.blind.size();
  for (size_t i = grid.blind.size(); i < grid.variants.size(); ++i) {
    less += Beats(runs, i, grid.Line(), metrics::kImbalance) ? 1 : 0;
    less_than_blind += Beats(runs, i, blind, metrics::kImbalance) ? 1 : 0;
    const auto step = [&](size_t variant) { return runs.Mean(variant, metrics::kStep.key).mean; };
    if (step(i) < step(best)) best = i;
  }
  const Estimate ratio = runs.Ratio(best, grid.Line(), metrics::kStep.key);
  return absl::StrFormat(
      "%s: of %d rules with a prediction %d have less imbalance than %s beyond doubt, and %d less than %s, "
      "which asks "
      "for none. The shortest steps of the %d: %s, %+.2f %% +- %.2f against %s, with a p99 wait of %.0f "
      "steps against "
      "%.0f.",
      Capital(grid.where), grid.variants.size() - grid.blind.size(), less, grid.blind.back().name,
      less_than_blind, grid.blind[blind].name, grid.variants.size() - grid.blind.size(),
      grid.variants[best].name, 100 * (ratio.mean - 1), 100 * ratio.half_width, grid.blind.back().name,
      runs.Mean(best, metrics::kWaitP99.key).mean, runs.Mean(grid.Line(), metrics::kWaitP99.key).mean);
}

}  // namespace

absl::StatusOr<Findings> PredictorWorth(const ExperimentContext& context) {
  Findings findings;
  findings.text.push_back(
      "oracle +-x: every length is told wrong by a factor drawn evenly from 1 - x to 1 + x. survival: learnt "
      "from requests that ended. hint L, noise N: a request shows exp(-(tokens left - 1) / L) times a "
      "lognormal "
      "factor of deviation N.");
  findings.parameters = CommonParameters(context);
  SimOptions options;
  for (const Workload& workload : context.workloads) {
    for (bool full : {true, false}) {
      const Grid grid = MakeGrid(context, workload, full);
      options = grid.variants[0].options;
      absl::StatusOr<SeededRuns> runs = RunSeeds(context, grid.variants);
      if (!runs.ok()) return runs.status();
      findings.text.push_back(Sentence(grid, *runs));
      findings.tables.push_back(Worth(grid, *runs));
      findings.tables.push_back(AllCells(grid, *runs));
      const Metric& shown = full ? metrics::kImbalance : metrics::kStep;
      findings.charts.push_back(OverError(grid, *runs, shown, !full));
      findings.charts.push_back(Bars(grid, *runs, shown));
    }
    findings.parameters.push_back({absl::StrCat("arrivals, ", workload.name), ArrivalsName(workload)});
    AddRunLength(findings, workload, options);
  }
  findings.parameters.push_back({"reveal, every slot taken", absl::StrCat(options.reveal, " requests")});
  return findings;
}

}  // namespace bfio::sim
