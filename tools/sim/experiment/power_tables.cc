#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"
#include "tools/sim/experiment/power_study.h"
#include "tools/sim/experiment/samples.h"

namespace bfio::sim {
namespace {

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

// A row for each power law and policy; `fill` adds the cells behind their names.
template <typename Fill>
void AddRows(report::Table& table, const PowerStudy& study, const Fill& fill) {
  for (size_t p = 0; p < kPowerCount; ++p) {
    for (size_t i = 0; i < study.shown.size(); ++i) {
      std::vector<report::Cell>& cells = table.rows.emplace_back();
      cells.emplace_back(std::string(kPowers[p].name));
      cells.emplace_back(study.shown[i].rule.name);
      fill(cells, p, i);
    }
  }
}

void AddEnergyColumns(report::Table& table) {
  for (const report::Column& column : {report::Column{"power law", ""},
                                       {"policy", ""},
                                       {"energy", "kJ", 4},
                                       {"+-", "kJ", 2},
                                       {"change", "%"},
                                       {"+-", "%", 2}}) {
    table.columns.push_back(column);
  }
}

// Of a variant, and its change from another, seed by seed.
void AddEnergyCells(std::vector<report::Cell>& cells, const SeededRuns& runs, size_t power, size_t variant,
                    size_t first) {
  const char* key = kPowers[power].energy_key;
  AddEstimate(cells, runs.Mean(variant, key), 1e-3);
  const Estimate ratio = runs.Ratio(variant, first, key);
  cells.emplace_back(variant == first ? std::nan("") : 100 * (ratio.mean - 1));
  cells.emplace_back(variant == first ? std::nan("") : 100 * ratio.half_width);
}

// Energy over time and over the GPUs, by seed.
std::vector<double> MeanWatts(const PowerStudy& study, const SeededRuns& runs, size_t power, size_t policy) {
  std::vector<double> means;
  for (size_t s = 0; s < study.watched[policy].size(); ++s) {
    const RunJson& run = runs.run(PowerStudy::UntilEmpty(policy), s);
    means.push_back(run.at(kPowers[power].energy_key).get<double>() / run.at("simulated_s").get<double>() /
                    run.at("workers").get<double>());
  }
  return means;
}

// The moving averages of all seeds.
std::vector<double> Smoothed(const PowerStudy& study, const SeededRuns& runs, size_t power, size_t policy) {
  std::vector<double> smoothed;
  for (size_t s = 0; s < study.watched[policy].size(); ++s) {
    const std::vector<double> one = MovingMean(
        Counted(study.watched[policy][s].watts[power], CountedSteps(runs, policy, s)), kPowerWindow);
    smoothed.insert(smoothed.end(), one.begin(), one.end());
  }
  return smoothed;
}

report::Table EnergyTable(const PowerStudy& study, const SeededRuns& runs) {
  report::Table table;
  table.title = "Energy and power until the pool is empty";
  table.note = absl::StrFormat(
      "As the authors' script counts. +-: half width of the 95 %% interval over the seeds. Change: against "
      "the first policy, seed by seed. Power: mean of a GPU, and 5 %% and 95 %% of its moving averages over "
      "%d steps. The paper's are of its BurstGPT sample.",
      kPowerWindow);
  AddEnergyColumns(table);
  for (const report::Column& column : {report::Column{"energy, paper", "kJ"},
                                       {"power", "W"},
                                       {"+-", "W", 2},
                                       {"from", "W"},
                                       {"to", "W"},
                                       {"from, paper", "W"},
                                       {"to, paper", "W"}}) {
    table.columns.push_back(column);
  }
  AddRows(table, study, [&](std::vector<report::Cell>& cells, size_t power, size_t policy) {
    AddEnergyCells(cells, runs, power, PowerStudy::UntilEmpty(policy), PowerStudy::UntilEmpty(0));
    const PrintedPower& paper = study.shown[policy].paper;
    cells.emplace_back(paper.energy_kj);
    AddEstimate(cells, EstimateMean(MeanWatts(study, runs, power, policy)));
    const std::vector<double> smoothed = Smoothed(study, runs, power, policy);
    cells.emplace_back(QuantileOf(smoothed, 0.05));
    cells.emplace_back(QuantileOf(smoothed, 0.95));
    cells.emplace_back(paper.from_w);
    cells.emplace_back(paper.to_w);
  });
  return table;
}

report::Table WholeTable(const PowerStudy& study, const SeededRuns& runs) {
  report::Table table;
  table.title = "Energy of the whole work";
  table.note =
      "To the last token of the last request. At the end, when few requests are left, most of the group "
      "idles whatever the policy.";
  AddEnergyColumns(table);
  AddRows(table, study, [&](std::vector<report::Cell>& cells, size_t power, size_t policy) {
    AddEnergyCells(cells, runs, power, PowerStudy::Whole(policy), PowerStudy::Whole(0));
  });
  return table;
}

report::Table WorkTable(const PowerStudy& study, const SeededRuns& runs) {
  report::Table table;
  table.title = "Time and tokens";
  table.note =
      "The whole work is the same under all policies; what is left when the pool is empty need not be.";
  table.columns = {{"policy", ""},           {"until the pool is empty", "s"}, {"+-", "s", 2},
                   {"tokens", "10^6", 4},    {"the whole work", "s"},          {"+-", "s", 2},
                   {"all tokens", "10^6", 4}};
  for (size_t i = 0; i < study.shown.size(); ++i) {
    std::vector<report::Cell>& cells = table.rows.emplace_back();
    cells.emplace_back(study.shown[i].rule.name);
    for (const size_t variant : {PowerStudy::UntilEmpty(i), PowerStudy::Whole(i)}) {
      AddEstimate(cells, runs.Mean(variant, "simulated_s"));
      cells.emplace_back(1e-6 * runs.Mean(variant, "tokens").mean);
    }
  }
  return table;
}

// Mean over the seeds; workers are alike, so what one differs by is chance and the policy's.
report::Table UtilisationTable(const PowerStudy& study, const SeededRuns& runs) {
  report::Table table;
  table.title = "Utilisation of each worker";
  table.note =
      "Until the pool is empty, time-weighted, mean over the seeds and half width of its 95 % interval. "
      "Load: L_g / max L. At work: the share of the step that the worker is not waiting at the barrier.";
  table.columns = {{"worker", ""}};
  for (const PowerPolicy& shown : study.shown) {
    for (const char* what : {"load", "at work"}) {
      table.columns.push_back({absl::StrCat(shown.rule.name, ", ", what), "%"});
      table.columns.push_back({"+-", "%", 2});
    }
  }
  const size_t workers = study.watched[0][0].load_ratio[0].size();
  table.rows.resize(workers);
  for (size_t g = 0; g < workers; ++g) table.rows[g].emplace_back(static_cast<int64_t>(g));
  for (size_t i = 0; i < study.shown.size(); ++i) {
    for (const bool load : {true, false}) {
      std::vector<std::vector<double>> by_worker(workers);
      for (size_t s = 0; s < study.watched[i].size(); ++s) {
        const PowerWatched& watched = study.watched[i][s];
        const std::vector<double> shares =
            Utilisation(load ? watched.load_ratio : watched.busy, watched.seconds, CountedSteps(runs, i, s));
        for (size_t g = 0; g < workers; ++g) by_worker[g].push_back(shares[g]);
      }
      for (size_t g = 0; g < workers; ++g) AddEstimate(table.rows[g], EstimateMean(by_worker[g]));
    }
  }
  return table;
}

}  // namespace

std::vector<report::Table> PowerTables(const PowerStudy& study, const SeededRuns& runs) {
  return {EnergyTable(study, runs), WholeTable(study, runs), WorkTable(study, runs),
          UtilisationTable(study, runs)};
}

}  // namespace bfio::sim
