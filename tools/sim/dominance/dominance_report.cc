#include "tools/sim/dominance/dominance_report.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "nlohmann/json.hpp"

namespace bfio::sim {
namespace {

struct Losses {
  int64_t cells = 0;
  int64_t step = 0;
  int64_t fair_step = 0;
  int64_t wait = 0;
  int64_t any = 0;
  // Only for means over seeds: losses larger than the spread over the seeds explains.
  int64_t clear_step = 0;

  void Add(bool step_loss, bool fair_step_loss, bool wait_loss) {
    ++cells;
    step += step_loss;
    fair_step += fair_step_loss;
    wait += wait_loss;
    any += step_loss || wait_loss;
  }
};

Losses CountCells(const Dominance& dominance) {
  Losses losses;
  for (const DominanceCell& cell : dominance.cells()) {
    const Verdict verdict = dominance.Judge(cell);
    losses.Add(verdict.step_loss, verdict.fair_step_loss, verdict.wait_loss);
  }
  return losses;
}

// Quantiles of Student's t with 1, 2, ... degrees of freedom: 95 % lie below, and 95 % within +-.
constexpr double kStudentBelow[] = {6.31, 2.92, 2.35, 2.13, 2.02, 1.94, 1.89, 1.86, 1.83};
constexpr double kStudentWithin[] = {12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26};

// Relative excess of the candidate's step time over that of baseline `run`: the mean over `seeds` cells from
// `first` on, and its standard error. The error is undefined for one seed.
struct Excess {
  double mean = 0;
  std::optional<double> error;
};
Excess ExcessOver(const std::vector<DominanceCell>& cells, size_t first, size_t seeds, int32_t run) {
  double sum = 0, squares = 0;
  for (size_t s = first; s < first + seeds; ++s) {
    const std::vector<RunMeasurements>& runs = cells[s].runs;
    const double excess = runs[0].step_s_mean / runs[static_cast<size_t>(run)].step_s_mean - 1;
    sum += excess;
    squares += excess * excess;
  }
  const double n = static_cast<double>(seeds), mean = sum / n;
  if (seeds < 2) return {mean, std::nullopt};
  return {mean, std::sqrt(std::max(0.0, squares / n - mean * mean) / (n - 1))};
}

double StudentPoint(absl::Span<const double> points, size_t seeds) {
  return points[std::min(seeds - 1, points.size()) - 1];
}

// The mean over the seeds of one setting: rounded p99 waits, and the longest wait of any seed.
DominanceCell SeedMean(const Dominance& dominance, size_t first) {
  const size_t seeds = static_cast<size_t>(dominance.options().seeds);
  const std::vector<DominanceCell>& cells = dominance.cells();
  DominanceCell mean = cells[first];
  for (size_t p = 0; p < mean.runs.size(); ++p) {
    double step_s = 0, wait = 0;
    for (size_t s = first; s < first + seeds; ++s) {
      step_s += cells[s].runs[p].step_s_mean;
      wait += static_cast<double>(cells[s].runs[p].wait_steps_p99);
      mean.runs[p].wait_steps_max = std::max(mean.runs[p].wait_steps_max, cells[s].runs[p].wait_steps_max);
    }
    mean.runs[p].step_s_mean = step_s / static_cast<double>(seeds);
    mean.runs[p].wait_steps_p99 = static_cast<int64_t>(wait / static_cast<double>(seeds) + 0.5);
  }
  return mean;
}

// Cells of the same setting are adjacent; their measurements are averaged before the verdict.
Losses CountSeedMeans(const Dominance& dominance) {
  Losses losses;
  const size_t seeds = static_cast<size_t>(dominance.options().seeds);
  const std::vector<DominanceCell>& cells = dominance.cells();
  for (size_t first = 0; first < cells.size(); first += seeds) {
    const Verdict verdict = dominance.Judge(SeedMean(dominance, first));
    losses.Add(verdict.step_loss, verdict.fair_step_loss, verdict.wait_loss);
    const Excess excess = ExcessOver(cells, first, seeds, verdict.best);
    losses.clear_step +=
        verdict.step_loss && excess.error && excess.mean > StudentPoint(kStudentBelow, seeds) * *excess.error;
  }
  return losses;
}

std::string LossLine(const char* what, const Losses& losses) {
  return absl::StrFormat(
      "%s: %d of %d lost (step %d, wait p99 %d); against baselines as fair as FCFS, step %d\n", what,
      losses.any, losses.cells, losses.step, losses.wait, losses.fair_step);
}

nlohmann::ordered_json LossJson(const Losses& losses) {
  return {{"cells", losses.cells},
          {"lost", losses.any},
          {"step_losses", losses.step},
          {"fair_step_losses", losses.fair_step},
          {"wait_losses", losses.wait}};
}

std::string LevelName(const DominanceCell& cell) {
  if (cell.mode == "arrivals") return absl::StrFormat("load %g", cell.level);
  return absl::StrFormat("%gx (%d)", cell.level, cell.reveal);
}

nlohmann::ordered_json RunJson(const std::string& policy, const RunMeasurements& run) {
  return {{"policy", policy},
          {"steps", run.steps},
          {"step_s_mean", run.step_s_mean},
          {"idle_fraction", run.idle_fraction},
          {"throughput_tokens_per_s", run.throughput_tokens_per_s},
          {"wait_steps_p50", run.wait_steps_p50},
          {"wait_steps_p99", run.wait_steps_p99},
          {"wait_steps_max", run.wait_steps_max}};
}

nlohmann::ordered_json CellJson(const Dominance& dominance, const DominanceCell& cell) {
  const Verdict verdict = dominance.Judge(cell);
  const auto name = [&](int32_t run) { return dominance.policies()[static_cast<size_t>(run)]; };
  nlohmann::ordered_json json;
  json["workload"] = dominance.options().workloads[static_cast<size_t>(cell.workload)].name;
  json["workers"] = cell.workers;
  json["mode"] = cell.mode;
  json[cell.mode == "arrivals" ? "load" : "depth"] = cell.level;
  if (cell.mode == "overload") json["reveal"] = cell.reveal;
  json["seed"] = cell.seed;
  json["best_baseline"] = name(verdict.best);
  json["step_ratio"] = verdict.step_ratio;
  json["best_fair_baseline"] = name(verdict.best_fair);
  json["fair_step_ratio"] = verdict.fair_step_ratio;
  json["wait_steps_p99"] = verdict.wait_p99;
  json["fcfs_wait_steps_p99"] = verdict.fcfs_wait_p99;
  json["step_loss"] = verdict.step_loss;
  json["fair_step_loss"] = verdict.fair_step_loss;
  json["wait_loss"] = verdict.wait_loss;
  json["runs"] = nlohmann::ordered_json::array();
  for (size_t p = 0; p < cell.runs.size(); ++p) {
    json["runs"].push_back(RunJson(dominance.policies()[p], cell.runs[p]));
  }
  return json;
}

// One setting, averaged over its seeds; the loss against the best fair baseline as a share of its step.
nlohmann::ordered_json SettingJson(const Dominance& dominance, size_t first) {
  const size_t seeds = static_cast<size_t>(dominance.options().seeds);
  const DominanceCell mean = SeedMean(dominance, first);
  const Verdict verdict = dominance.Judge(mean);
  const Excess excess = ExcessOver(dominance.cells(), first, seeds, verdict.best_fair);
  nlohmann::ordered_json json;
  json["workload"] = dominance.options().workloads[static_cast<size_t>(mean.workload)].name;
  json["workers"] = mean.workers;
  json["mode"] = mean.mode;
  json["level"] = mean.level;
  json["step_ms"] = 1e3 * mean.runs[0].step_s_mean;
  json["best_fair"] = dominance.policies()[static_cast<size_t>(verdict.best_fair)];
  json["fair_step_loss"] = excess.mean;
  if (excess.error) json["fair_step_loss_within_95"] = StudentPoint(kStudentWithin, seeds) * *excess.error;
  json["wait_steps_p99"] = verdict.wait_p99;
  json["fcfs_wait_steps_p99"] = verdict.fcfs_wait_p99;
  json["wait_steps_max"] = mean.runs[0].wait_steps_max;
  json["fcfs_wait_steps_max"] = mean.runs[static_cast<size_t>(dominance.fcfs())].wait_steps_max;
  return json;
}

}  // namespace

std::string DominanceHeader() {
  return absl::StrFormat("%-14s %4s %-13s %4s  %9s %7s  %9s %-15s %8s  %-15s %8s  %6s %6s  %s", "workload",
                         "G", "level", "seed", "step ms", "idle", "best ms", "best baseline", "+step %",
                         "best fair", "+step %", "p99", "FCFS", "lost");
}

std::string DominanceLine(const Dominance& dominance, const DominanceCell& cell) {
  const Verdict verdict = dominance.Judge(cell);
  const RunMeasurements &ours = cell.runs[0], &best = cell.runs[static_cast<size_t>(verdict.best)];
  return absl::StrFormat(
      "%-14.14s %4d %-13s %4d  %9.4f %6.2f%%  %9.4f %-15s %+8.3f  %-15s %+8.3f  %6d %6d  %s%s%s",
      dominance.options().workloads[static_cast<size_t>(cell.workload)].name, cell.workers, LevelName(cell),
      cell.seed, 1e3 * ours.step_s_mean, 100 * ours.idle_fraction, 1e3 * best.step_s_mean,
      dominance.policies()[static_cast<size_t>(verdict.best)], 100 * (verdict.step_ratio - 1),
      dominance.policies()[static_cast<size_t>(verdict.best_fair)], 100 * (verdict.fair_step_ratio - 1),
      verdict.wait_p99, verdict.fcfs_wait_p99, verdict.step_loss ? "STEP " : "",
      verdict.fair_step_loss ? "FAIR-STEP " : "", verdict.wait_loss ? "WAIT" : "");
}

std::string DominanceSummary(const Dominance& dominance) {
  const Losses means = CountSeedMeans(dominance);
  std::string summary = LossLine("cells", CountCells(dominance));
  absl::StrAppend(&summary, LossLine("means over seeds", means));
  absl::StrAppend(&summary, "of these step losses, significant over the seeds (95 %): ", means.clear_step,
                  "\n");
  std::vector<int64_t> best(dominance.policies().size()), fair(best.size());
  for (const DominanceCell& cell : dominance.cells()) {
    const Verdict verdict = dominance.Judge(cell);
    ++best[static_cast<size_t>(verdict.best)];
    ++fair[static_cast<size_t>(verdict.best_fair)];
  }
  absl::StrAppend(&summary, "cells in which a baseline is the best (best of those as fair as FCFS):");
  for (size_t p = 1; p < best.size(); ++p) {
    if (best[p] + fair[p] == 0) continue;
    absl::StrAppend(&summary, " ", dominance.policies()[p], " ", best[p], " (", fair[p], ")");
  }
  return summary;
}

nlohmann::ordered_json DominanceJson(const Dominance& dominance) {
  const SimOptions& base = dominance.options().base;
  nlohmann::ordered_json json;
  json["candidate"] = dominance.policies()[0];
  json["batch"] = base.batch;
  json["objective"] = base.objective;
  json["horizon"] = base.horizon;
  json["lookahead"] = base.lookahead;
  json["plan_mode"] = base.plan_mode;
  json["wait_ratio"] = base.wait_ratio;
  json["warmup"] = base.warmup;
  json["steps"] = base.steps;
  json["seeds"] = dominance.options().seeds;
  json["by_cell"] = LossJson(CountCells(dominance));
  const Losses means = CountSeedMeans(dominance);
  json["by_seed_mean"] = LossJson(means);
  json["by_seed_mean"]["clear_step_losses"] = means.clear_step;
  json["settings"] = nlohmann::ordered_json::array();
  for (size_t first = 0; first < dominance.cells().size();
       first += static_cast<size_t>(dominance.options().seeds)) {
    json["settings"].push_back(SettingJson(dominance, first));
  }
  json["cells"] = nlohmann::ordered_json::array();
  for (const DominanceCell& cell : dominance.cells()) json["cells"].push_back(CellJson(dominance, cell));
  return json;
}

}  // namespace bfio::sim
