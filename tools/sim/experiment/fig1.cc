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
#include "tools/sim/experiment/idle_charts.h"
#include "tools/sim/experiment/rule.h"

namespace bfio::sim {
namespace {

constexpr int32_t kPaperWorkers = 32;
constexpr size_t kPaperSteps = 436;
// Rows drawn from workloads that have no order of their own; read round.
constexpr int64_t kDrawnRows = 200'000;
constexpr int kDivisors[] = {1, 2, 4, 8};

StepTap Watch(IdleWatched& watched, uint64_t seed, int64_t warmup) {
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
  std::vector<IdleWatched> watched;
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
      IdleWatched& watched = plan.watched[w * rules.size() + r];
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

report::Table MakeTable(const ExperimentContext& context, const std::vector<IdleWatched>& all,
                        const SeededRuns& runs) {
  report::Table table;
  table.title = "Idle share per step";
  table.note =
      "1 - mean L / max L of each counted step. +-: half width of the 95 % interval over the seeds, of a "
      "run's mean and of its median; the two quantiles are over the steps of all seeds. Barrier wait: the "
      "share of the whole step time, fixed part included, that workers wait. The paper's trace is another "
      "one.";
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
    const IdleWatched& watched = all[i];
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
    cells.emplace_back(kPaperIdleMean);
    cells.emplace_back(kPaperIdleMedian);
  }
  return table;
}

report::Table MakeBatchTable(const ExperimentContext& context, const Plan& plan, const SeededRuns& runs) {
  report::Table table;
  table.title = "FCFS with fewer slots";
  table.note =
      "Requests on a worker average each other out: the fewer, the less. +-: half width of the 95 % "
      "interval over the seeds.";
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

}  // namespace

absl::StatusOr<Findings> Fig1(const ExperimentContext& asked) {
  ExperimentContext context = asked;
  if (!context.workers_given) context.base.workers = kPaperWorkers;
  const Plan plan = MakePlan(context);
  const absl::StatusOr<SeededRuns> runs = RunSeeds(context, plan.variants);
  if (!runs.ok()) return runs.status();

  Findings findings;
  findings.text.push_back(
      absl::StrFormat("Share of every step that workers wait for the heaviest, 1 - mean L / max L, with "
                      "every slot taken. The paper's trace (%d GPUs, %d steps, mean %g %%, median %g %%) is "
                      "not public, nor are its batch sizes and its policy known; these are other workloads.",
                      kPaperWorkers, kPaperSteps, kPaperIdleMean, kPaperIdleMedian));
  for (size_t i = 0; i < plan.watched.size(); ++i) {
    const IdleWatched& watched = plan.watched[i];
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
  findings.charts = IdleCharts(context, plan.watched);
  return findings;
}

}  // namespace bfio::sim
