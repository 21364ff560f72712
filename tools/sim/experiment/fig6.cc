// BF-IO paper, Figure 6: the load of every worker over some 4,000 steps, policy by policy.
//
// The paper shows FCFS, JSQ, BF-IO H = 0 and H = 20 on 16 GPUs and gives ranges in its text. Here the same,
// JSQ by count and by tokens, and bf_io_auto, on requests drawn with replacement.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tools/sim/experiment/columns.h"
#include "tools/sim/experiment/experiments.h"
#include "tools/sim/experiment/rule.h"

namespace bfio::sim {
namespace {

constexpr int64_t kSteps = 4000;
constexpr int64_t kRequests = 100'000;
// The figures of the table begin when the loads have grown to what they stay at; the charts show all steps.
constexpr int64_t kSettling = 1000;
// A chart shows a step in so many that a line has about this many points.
constexpr int64_t kChartPoints = 1000;

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

// What the paper's text says of a chart, 10^3 tokens.
struct Printed {
  double least = kNone, most = kNone, gap_from = kNone, gap_to = kNone;
};

struct Shown {
  Rule rule;
  Printed paper;
  const char* in_words = "";
};

std::vector<Shown> Policies(const ExperimentContext& context) {
  const std::vector<Shown> own = {
      {{"FCFS", "fcfs"}, {60, 110, 40, 50}, "60k to 110k, gap 40k to 50k"},
      {{"JSQ by count", "least_requests"}, {kNone, 120}, "peaks above 120k while others are near 80k"},
      {{"JSQ by tokens", "least_tokens"}, {}},
      {PaperBfIo(0), {kNone, kNone, 5, 10}, "near 80k, gap 5k to 10k"},
      {PaperBfIo(20), {}, "nearly identical loads"},
      {{"bf_io_auto", "bf_io_auto"}, {}}};
  if (context.policies.empty()) return own;
  std::vector<Shown> asked;
  for (const Rule& rule : RulesOr(context, {})) asked.push_back({rule, {}});
  return asked;
}

// Sums over the steps of one run after the settling, in tokens.
struct Spread {
  int64_t steps = 0;
  double min = 0, mean = 0, max = 0;
  int64_t least = std::numeric_limits<int64_t>::max(), most = 0;
};

struct Trajectories {
  std::vector<double> step, min, mean, max;
  std::vector<std::vector<double>> of_worker;
};

// Of one policy.
struct Watched {
  std::vector<Spread> by_seed;
  Trajectories trajectories;  // of seed 1, 10^3 tokens
};

void AddToSpread(Spread& spread, int64_t min, double mean, int64_t max) {
  ++spread.steps;
  spread.min += static_cast<double>(min);
  spread.mean += mean;
  spread.max += static_cast<double>(max);
  spread.least = std::min(spread.least, min);
  spread.most = std::max(spread.most, max);
}

void AddToTrajectories(Trajectories& trajectories, const StepView& view, int64_t min, double mean,
                       int64_t max) {
  constexpr double kScale = 1e-3;
  trajectories.step.push_back(static_cast<double>(view.step));
  trajectories.min.push_back(kScale * static_cast<double>(min));
  trajectories.mean.push_back(kScale * mean);
  trajectories.max.push_back(kScale * static_cast<double>(max));
  trajectories.of_worker.resize(view.loads.size());
  for (size_t g = 0; g < view.loads.size(); ++g) {
    trajectories.of_worker[g].push_back(kScale * static_cast<double>(view.loads[g]));
  }
}

StepTap Watch(Watched& watched, uint64_t seed, int64_t settling, int64_t stride) {
  return [&watched, seed, settling, stride](const StepView& view) {
    const auto [min, max] = std::minmax_element(view.loads.begin(), view.loads.end());
    const double mean =
        static_cast<double>(std::accumulate(view.loads.begin(), view.loads.end(), int64_t{0})) /
        static_cast<double>(view.loads.size());
    if (view.step > settling) AddToSpread(watched.by_seed[seed - 1], *min, mean, *max);
    if (seed == 1 && (view.step - 1) % stride == 0) {
      AddToTrajectories(watched.trajectories, view, *min, mean, *max);
    }
  };
}

SimOptions BaseOptions(const ExperimentContext& context) {
  SimOptions options = context.base;
  options.mode = "overload";
  options.warmup = context.Shortened(kSettling, 40);
  options.steps = context.Shortened(kSteps, 160) - options.warmup;
  options.requests = 0;
  return options;
}

report::Table MakeTable(const std::vector<Shown>& shown, const std::vector<Watched>& watched,
                        const SeededRuns& runs) {
  report::Table table;
  table.title = "Spread of the loads";
  table.note =
      "Means over the steps after the settling, +-: half width of the 95 % interval over the seeds. Gap: "
      "heaviest less lightest worker of a step. Least, most: of any worker in any of these steps of any "
      "seed. The paper's are of its BurstGPT sample.";
  table.columns = {{"policy", ""},           {"mean load", "10^3 tokens"},
                   {"+-", "10^3 tokens", 2}, {"lightest", "10^3 tokens"},
                   {"+-", "10^3 tokens", 2}, {"heaviest", "10^3 tokens"},
                   {"+-", "10^3 tokens", 2}, {"gap", "10^3 tokens"},
                   {"+-", "10^3 tokens", 2}, {"least", "10^3 tokens"},
                   {"most", "10^3 tokens"}};
  AddColumns(table, {&metrics::kImbalance, 1});
  for (const char* name : {"least, paper", "most, paper", "gap from, paper", "to, paper"}) {
    table.columns.push_back({name, "10^3 tokens"});
  }
  for (size_t i = 0; i < shown.size(); ++i) {
    std::vector<double> min, mean, max, gap;
    double least = std::numeric_limits<double>::infinity(), most = 0;
    for (const Spread& spread : watched[i].by_seed) {
      const double scale = 1e-3 / static_cast<double>(spread.steps);
      min.push_back(scale * spread.min);
      mean.push_back(scale * spread.mean);
      max.push_back(scale * spread.max);
      gap.push_back(max.back() - min.back());
      least = std::min(least, 1e-3 * static_cast<double>(spread.least));
      most = std::max(most, 1e-3 * static_cast<double>(spread.most));
    }
    std::vector<report::Cell>& cells = table.rows.emplace_back();
    cells.emplace_back(shown[i].rule.name);
    for (const auto& values : {mean, min, max, gap}) AddEstimate(cells, EstimateMean(values));
    cells.emplace_back(least);
    cells.emplace_back(most);
    AddCells(cells, runs, i, {&metrics::kImbalance, 1});
    const Printed& paper = shown[i].paper;
    for (const double printed : {paper.least, paper.most, paper.gap_from, paper.gap_to})
      cells.emplace_back(printed);
  }
  return table;
}

// All charts have the same y axis, so that they can be compared.
report::Chart MakeChart(const Shown& shown, const Trajectories& trajectories, double highest) {
  report::Chart chart;
  chart.title = absl::StrCat("Loads of the workers: ", shown.rule.name);
  if (*shown.in_words != '\0') chart.note = absl::StrCat("In the paper: ", shown.in_words, ".");
  chart.x = {"step", ""};
  chart.y = {"load", "10^3 tokens"};
  chart.y.min = 0;
  chart.y.max = highest;
  for (size_t g = 0; g < trajectories.of_worker.size(); ++g) {
    chart.series.push_back({absl::StrCat("worker ", g), trajectories.step, trajectories.of_worker[g]});
  }
  report::Series max{"heaviest", trajectories.step, trajectories.max},
      mean{"mean", trajectories.step, trajectories.mean};
  max.strong = mean.strong = true;
  chart.series.push_back(max);
  chart.series.push_back(mean);
  return chart;
}

report::Chart GapChart(const std::vector<Shown>& shown, const std::vector<Watched>& watched) {
  report::Chart chart;
  chart.title = "Heaviest less lightest worker";
  chart.x = {"step", ""};
  chart.y = {"gap", "10^3 tokens", true};
  chart.y.min = 0.1;
  for (size_t i = 0; i < shown.size(); ++i) {
    const Trajectories& of = watched[i].trajectories;
    report::Series& series = chart.series.emplace_back();
    series.name = shown[i].rule.name;
    series.x = of.step;
    for (size_t k = 0; k < of.step.size(); ++k) series.y.push_back(of.max[k] - of.min[k]);
  }
  return chart;
}

std::string Describe(const report::Table& table) {
  std::string text = "Mean gap between the heaviest and the lightest worker, in 10^3 tokens:";
  for (size_t i = 0; i < table.rows.size(); ++i) {
    const auto& row = table.rows[i];
    absl::StrAppendFormat(&text, "%s %s %.1f +- %.1f", i == 0 ? "" : ",", std::get<std::string>(row[0]),
                          std::get<double>(row[7]), std::get<double>(row[8]));
  }
  return absl::StrCat(text, ".");
}

}  // namespace

absl::StatusOr<Findings> Fig6(const ExperimentContext& context) {
  const std::vector<Shown> shown = Policies(context);
  const SimOptions base = BaseOptions(context);
  const int64_t steps = base.warmup + base.steps;
  const int64_t stride = std::max<int64_t>(1, steps / kChartPoints);
  const auto drawn = DrawnBySeed(context.workloads[0], context.Shortened(kRequests, 2'000));
  std::vector<Watched> watched(shown.size());
  std::vector<Variant> variants;
  for (size_t i = 0; i < shown.size(); ++i) {
    watched[i].by_seed.resize(context.seeds);
    variants.push_back({shown[i].rule.name, WithRule(base, shown[i].rule), drawn});
    variants[i].tap_of_seed = [&, i](uint64_t seed) { return Watch(watched[i], seed, base.warmup, stride); };
  }
  const absl::StatusOr<SeededRuns> runs = RunSeeds(context, variants);
  if (!runs.ok()) return runs.status();

  Findings findings;
  findings.tables = {MakeTable(shown, watched, *runs)};
  findings.text = {absl::StrCat("The load of each of ", base.workers, " workers over ", steps,
                                " steps, on requests drawn with replacement from ", context.workloads[0].name,
                                "; one chart for each policy, all to one scale."),
                   Describe(findings.tables[0])};
  findings.parameters = CommonParameters(context);
  findings.parameters.emplace_back("workload", context.workloads[0].name);
  findings.parameters.emplace_back("reveal target R", absl::StrCat(context.base.reveal));
  findings.parameters.emplace_back("steps",
                                   absl::StrCat(steps, ", the first ", base.warmup, " not in the table"));
  findings.parameters.emplace_back("charts", absl::StrCat("seed 1, every ", stride, "th step"));
  findings.parameters.emplace_back("lookahead where H > 0", "oracle: every length is known");
  double highest = 0;
  for (const Watched& one : watched) {
    highest = std::max(highest, *std::max_element(one.trajectories.max.begin(), one.trajectories.max.end()));
  }
  for (size_t i = 0; i < shown.size(); ++i) {
    findings.charts.push_back(MakeChart(shown[i], watched[i].trajectories, highest));
  }
  findings.charts.push_back(GapChart(shown, watched));
  return findings;
}

}  // namespace bfio::sim
