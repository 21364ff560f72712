// BF-IO paper, Figure 1: how much of each step the workers spend waiting for the slowest.
//
// The paper's is an industrial trace (32 GPUs, 436 steps in 33 minutes, mean 40 %, median 41 %) that is not
// public, under a policy it does not name. Here: the same share, 1 - mean L / max L, for the workloads that
// there are, under FCFS and under bf_io_auto, with slots for B requests and, since that decides most, for
// fewer.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tools/sim/experiment/columns.h"
#include "tools/sim/experiment/experiments.h"
#include "tools/sim/experiment/rule.h"
#include "tools/sim/experiment/samples.h"

namespace bfio::sim {
namespace {

constexpr int32_t kPaperWorkers = 32;
constexpr size_t kPaperSteps = 436;
constexpr double kPaperMean = 40, kPaperMedian = 41;
// Rows drawn from workloads that have no order of their own; read round.
constexpr int64_t kDrawnRows = 200'000;
constexpr int kDivisors[] = {1, 2, 4, 8};
constexpr double kPercentPerBin = 2;

// Of one variant.
struct Watched {
  size_t workload = 0;
  Rule rule;
  // Percent by step, for each seed.
  std::vector<std::vector<double>> idle;
  // Of seed 1 and the first steps counted: by step, then worker.
  std::vector<std::vector<int64_t>> loads;

  std::vector<double> AllSeeds() const {
    std::vector<double> all;
    for (const auto& one : idle) all.insert(all.end(), one.begin(), one.end());
    return all;
  }
  Estimate OverSeeds(double quantile) const {
    std::vector<double> values;
    for (const auto& one : idle) values.push_back(QuantileOf(one, quantile));
    return EstimateMean(values);
  }
};

StepTap Watch(Watched& watched, uint64_t seed, int64_t warmup) {
  return [&watched, seed, warmup](const StepView& view) {
    if (view.step <= warmup) return;
    const int64_t max = *std::max_element(view.loads.begin(), view.loads.end());
    const double mean =
        static_cast<double>(std::accumulate(view.loads.begin(), view.loads.end(), int64_t{0})) /
        static_cast<double>(view.loads.size());
    watched.idle[seed - 1].push_back(max > 0 ? 100 * (1 - mean / static_cast<double>(max)) : 0);
    if (seed == 1 && watched.loads.size() < kPaperSteps) {
      watched.loads.emplace_back(view.loads.begin(), view.loads.end());
    }
  };
}

struct Plan {
  SimOptions options;
  std::vector<Watched> watched;
  // A variant for each of `watched`, then FCFS with fewer slots: for each workload, one for each divisor
  // but 1.
  std::vector<Variant> variants;
};

SimOptions BaseOptions(const ExperimentContext& context) {
  SimOptions options = context.base;
  options.mode = "overload";
  options.warmup = context.Shortened(500, 20);
  options.steps = context.Shortened(3000, 60);
  options.requests = 0;
  return options;
}

// Batches of FCFS with fewer slots, none of them 0.
std::vector<int32_t> Batches(const SimOptions& options) {
  std::vector<int32_t> batches;
  for (const int divisor : kDivisors) {
    if (options.batch / divisor > 0) batches.push_back(options.batch / divisor);
  }
  return batches;
}

Plan MakePlan(const ExperimentContext& context) {
  Plan plan;
  plan.options = BaseOptions(context);
  const std::vector<Rule> rules = RulesOr(context, {{"FCFS", "fcfs"}, {"bf_io_auto", "bf_io_auto"}});
  plan.watched.resize(context.workloads.size() * rules.size());
  std::vector<Variant> fewer;
  for (size_t w = 0; w < context.workloads.size(); ++w) {
    const Workload& workload = context.workloads[w];
    const auto rows = workload.trace->has_arrivals
                          ? RotatedBySeed(workload)
                          : DrawnBySeed(workload, context.Shortened(kDrawnRows, 2'000));
    for (size_t r = 0; r < rules.size(); ++r) {
      Watched& watched = plan.watched[w * rules.size() + r];
      watched.workload = w;
      watched.rule = rules[r];
      watched.idle.resize(context.seeds);
      Variant& variant = plan.variants.emplace_back();
      variant = {absl::StrCat(rules[r].name, ", ", workload.name), WithRule(plan.options, rules[r]), rows};
      variant.tap_of_seed = [&watched, warmup = plan.options.warmup](uint64_t seed) {
        return Watch(watched, seed, warmup);
      };
    }
    for (const int32_t batch : Batches(plan.options)) {
      Variant& variant = fewer.emplace_back();
      variant = {absl::StrCat("FCFS, B=", batch, ", ", workload.name),
                 WithRule(plan.options, {"FCFS", "fcfs"}), rows};
      variant.options.batch = batch;
    }
  }
  for (Variant& variant : fewer) plan.variants.push_back(std::move(variant));
  return plan;
}

report::Table MakeTable(const ExperimentContext& context, const std::vector<Watched>& all,
                        const SeededRuns& runs) {
  report::Table table;
  table.title = "Idle share per step";
  table.note =
      "1 - mean L / max L of each counted step. +-: half width of the 95 % interval over the seeds, of a "
      "run's "
      "mean and of its median; the two quantiles are over the steps of all seeds. Barrier wait: the share of "
      "the whole step time, fixed part included, that workers wait. The paper's trace is another one.";
  table.columns = {{"policy", ""},
                   {"workload", ""},
                   {"mean", "%"},
                   {"+-", "%", 2},
                   {"median", "%"},
                   {"+-", "%", 2},
                   {"5 % of steps below", "%"},
                   {"5 % above", "%"},
                   {"barrier wait", "%"},
                   {"+-", "%", 2},
                   {"mean, paper", "%"},
                   {"median, paper", "%"}};
  for (size_t i = 0; i < all.size(); ++i) {
    const Watched& watched = all[i];
    std::vector<report::Cell>& cells = table.rows.emplace_back();
    cells.emplace_back(watched.rule.name);
    cells.emplace_back(context.workloads[watched.workload].name);
    AddEstimate(cells, runs.Mean(i, metrics::kIdle.key), metrics::kIdle.scale);
    AddEstimate(cells, watched.OverSeeds(0.5));
    const std::vector<double> steps = watched.AllSeeds();
    cells.emplace_back(QuantileOf(steps, 0.05));
    cells.emplace_back(QuantileOf(steps, 0.95));
    AddEstimate(cells, runs.Mean(i, "barrier_wait_fraction"), 100);
    if (watched.rule.policy != "fcfs") continue;
    cells.emplace_back(kPaperMean);
    cells.emplace_back(kPaperMedian);
  }
  return table;
}

report::Table MakeBatchTable(const ExperimentContext& context, const Plan& plan, const SeededRuns& runs) {
  report::Table table;
  table.title = "FCFS with fewer slots";
  table.note =
      "Requests on a worker average each other out: the fewer, the less. +-: half width of the 95 % interval "
      "over the "
      "seeds.";
  table.columns = {{"workload", ""}, {"slots per worker B", ""}, {"mean idle share", "%"}, {"+-", "%", 2}};
  size_t variant = plan.watched.size();
  for (const Workload& workload : context.workloads) {
    for (const int32_t batch : Batches(plan.options)) {
      std::vector<report::Cell>& cells = table.rows.emplace_back();
      cells = {workload.name, int64_t{batch}};
      AddEstimate(cells, runs.Mean(variant++, metrics::kIdle.key), metrics::kIdle.scale);
    }
  }
  return table;
}

std::vector<double> Counting(size_t count, double first = 1) {
  std::vector<double> numbers(count);
  std::iota(numbers.begin(), numbers.end(), first);
  return numbers;
}

report::Chart TraceChart(const ExperimentContext& context, const std::vector<Watched>& all, size_t workload) {
  report::Chart chart;
  chart.title = absl::StrCat("Idle share over the steps: ", context.workloads[workload].name);
  chart.note = "Seed 1.";
  chart.x = {"counted step", ""};
  chart.y = {"idle share", "%"};
  chart.y.min = 0;
  for (const Watched& watched : all) {
    if (watched.workload != workload) continue;
    chart.series.push_back({watched.rule.name, Counting(watched.idle[0].size()), watched.idle[0]});
  }
  chart.references = {{"mean of the paper's trace", kPaperMean}};
  return chart;
}

std::string SeriesName(const ExperimentContext& context, const Watched& watched) {
  if (context.workloads.size() == 1) return watched.rule.name;
  return absl::StrCat(watched.rule.name, ", ", context.workloads[watched.workload].name);
}

report::Chart HistogramChart(const ExperimentContext& context, const std::vector<Watched>& all) {
  report::Chart chart;
  chart.title = "How often a step is idle by how much";
  chart.note = absl::StrFormat("Steps of all seeds, in bins of %g %%.", kPercentPerBin);
  chart.x = {"idle share", "%"};
  chart.y = {"share of the steps", "%"};
  for (const Watched& watched : all) {
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

report::Chart CumulativeChart(const ExperimentContext& context, const std::vector<Watched>& all) {
  constexpr int kPoints = 200;
  report::Chart chart;
  chart.title = "Share of steps that are idle by no more than this";
  chart.note = "Steps of all seeds; the median is where a curve crosses 50 %.";
  chart.x = {"idle share", "%"};
  chart.y = {"share of the steps", "%"};
  for (const Watched& watched : all) {
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

report::Chart LoadChart(const ExperimentContext& context, const Watched& watched) {
  report::Chart chart;
  chart.title = absl::StrCat("Loads of the workers: ", watched.rule.name, ", ",
                             context.workloads[watched.workload].name);
  chart.note =
      absl::StrCat("The first ", watched.loads.size(),
                   " counted steps of seed 1, as many as the paper's figure has. The heaviest worker "
                   "decides when the step ends.");
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

absl::StatusOr<Findings> Fig1(const ExperimentContext& asked) {
  ExperimentContext context = asked;
  // The flag's own default counts as not given.
  if (context.base.workers == SimOptions{}.workers) context.base.workers = kPaperWorkers;
  const Plan plan = MakePlan(context);
  const absl::StatusOr<SeededRuns> runs = RunSeeds(context, plan.variants);
  if (!runs.ok()) return runs.status();

  Findings findings;
  findings.text.push_back(
      absl::StrFormat("Share of every step that workers wait for the heaviest, 1 - mean L / max L, with "
                      "every slot taken. The "
                      "paper's trace (%d GPUs, %d steps, mean %g %%, median %g %%) is not public, nor are "
                      "its batch sizes and its "
                      "policy known; these are other workloads.",
                      kPaperWorkers, kPaperSteps, kPaperMean, kPaperMedian));
  for (size_t i = 0; i < plan.watched.size(); ++i) {
    const Watched& watched = plan.watched[i];
    const Estimate mean = runs->Mean(i, metrics::kIdle.key), median = watched.OverSeeds(0.5);
    findings.text.push_back(absl::StrFormat(
        "%s, %s: mean %.1f +- %.1f %%, median %.1f +- %.1f %%.", context.workloads[watched.workload].name,
        watched.rule.name, 100 * mean.mean, 100 * mean.half_width, median.mean, median.half_width));
  }
  findings.parameters = CommonParameters(context);
  for (const Workload& workload : context.workloads) {
    findings.parameters.emplace_back(
        "workload",
        absl::StrCat(workload.name, workload.trace->has_arrivals ? ", in its order, from a start by seed"
                                                                 : ", rows drawn with replacement"));
  }
  findings.parameters.emplace_back("reveal target R", absl::StrCat(context.base.reveal));
  findings.parameters.emplace_back(
      "steps", absl::StrCat(plan.options.steps, " counted after a warm-up of ", plan.options.warmup));
  findings.tables = {MakeTable(context, plan.watched, *runs), MakeBatchTable(context, plan, *runs)};
  findings.charts = {LoadChart(context, plan.watched[0])};
  for (size_t w = 0; w < context.workloads.size(); ++w) {
    findings.charts.push_back(TraceChart(context, plan.watched, w));
  }
  findings.charts.push_back(HistogramChart(context, plan.watched));
  findings.charts.push_back(CumulativeChart(context, plan.watched));
  return findings;
}

}  // namespace bfio::sim
