// What theory says about the cells of the scaling experiment, and what came out, in words.
#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tools/sim/experiment/scaling.h"
#include "tools/sim/experiment/theory.h"

namespace bfio::sim::scaling {
namespace {

absl::StatusOr<Theory> TheoryOf(const Study& study, const Cell& cell) {
  const Family& family = study.families[cell.family];
  double deviation = UniformDeviation(kLargestPrompt);
  if (family.geometric) {
    const absl::StatusOr<SlotLoad> slot = GeometricSlotLoad(
        family.drift, kEndRate, (kLargestPrompt + 1) / 2.0, UniformDeviation(kLargestPrompt), 1);
    if (!slot.ok()) return slot.status();
    deviation = slot->deviation;
  }
  return Theory{FcfsNormalEstimate(cell.workers, cell.batch, deviation),
                FcfsLowerBound(cell.workers, cell.batch, UniformDeviation(kLargestPrompt)),
                BfIoUpperBound(cell.workers, kLargestPrompt, family.geometric ? kEndRate : 1)};
}

void AddText(const Study& study, const SeededRuns& runs, const std::vector<Theory>& theory,
             Findings& findings) {
  findings.text.push_back(
      absl::StrFormat("Prompts uniform on 1 to %d tokens; outputs of %d tokens, or geometric with p = %g. "
                      "The improvement is FCFS's "
                      "average imbalance over the policy's, paired by seed.",
                      kLargestPrompt, kOutput, kEndRate));
  double least = std::numeric_limits<double>::infinity(), most = 0, least_over_bound = least;
  size_t within = 0, exceeded = 0, none = 0, cells = 0;
  for (size_t i = 0; i < study.cells.size(); ++i) {
    const double fcfs = runs.Mean(study.At(i, 0), kImbalanceKey).mean;
    const double ratio = fcfs / theory[i].normal_estimate;
    least = std::min(least, ratio);
    most = std::max(most, ratio);
    least_over_bound = std::min(least_over_bound, fcfs / theory[i].lower);
    for (size_t rule = 1; rule < study.rules.size(); ++rule) {
      if (study.rules[rule].objective != "paper") continue;
      const double own = runs.Mean(study.At(i, rule), kImbalanceKey).mean;
      ++cells;
      none += own == 0 ? 1 : 0;
      within += own <= theory[i].upper ? 1 : 0;
      exceeded += own > theory[i].upper ? 1 : 0;
    }
  }
  findings.text.push_back(
      "The router takes what a request that ended held from its own count, a token a step. Where loads grow "
      "otherwise "
      "it is wrong by the difference until the next report; the BF-IO of Theorem 3 knows the loads.");
  findings.text.push_back(
      absl::StrFormat("FCFS's imbalance is %.3f to %.3f of the normal estimate over %d cells, and never less "
                      "than %.1f times the "
                      "paper's lower bound.",
                      least, most, study.cells.size(), least_over_bound));
  if (cells == 0) return;
  findings.text.push_back(
      absl::StrFormat("BF-IO with the paper's objective and H = 0 keeps below its upper bound in %d of %d "
                      "cells, is above it in %d, "
                      "and has no imbalance at all in %d.",
                      within, cells, exceeded, none));
}

}  // namespace

std::vector<double> Imbalances(const Study& study, const SeededRuns& runs, size_t cell, size_t rule) {
  return runs.Values(study.At(cell, rule), kImbalanceKey);
}

std::optional<std::vector<double>> Improvement(const Study& study, const SeededRuns& runs, size_t cell,
                                               size_t rule) {
  std::vector<double> ratios = Imbalances(study, runs, cell, 0);
  const std::vector<double> own = Imbalances(study, runs, cell, rule);
  for (size_t i = 0; i < ratios.size(); ++i) {
    if (own[i] == 0) return std::nullopt;
    ratios[i] /= own[i];
  }
  return ratios;
}

absl::Status Report(const Study& study, const SeededRuns& runs, int32_t fixed_workers, int32_t fixed_batch,
                    Findings& findings) {
  std::vector<Theory> theory;
  for (const Cell& cell : study.cells) {
    absl::StatusOr<Theory> one = TheoryOf(study, cell);
    if (!one.ok()) return one.status();
    theory.push_back(*one);
  }
  AddText(study, runs, theory, findings);
  AddTables(study, runs, theory, fixed_workers, fixed_batch, findings);
  AddCharts(study, runs, theory, fixed_workers, fixed_batch, findings);
  for (const Family& family : study.families) {
    findings.parameters.push_back({absl::StrCat("drift, ", family.name), family.drift});
  }
  return absl::OkStatus();
}

}  // namespace bfio::sim::scaling
