// Tables and charts of the scaling experiment: what was measured, and what theory says beside it.
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tools/sim/experiment/columns.h"
#include "tools/sim/experiment/scaling.h"
#include "tools/sim/experiment/theory.h"

namespace bfio::sim::scaling {
namespace {

constexpr char kKey[] = "avg_imbalance_tokens";
const double kPromptDeviation = UniformDeviation(kLargestPrompt);

// Imbalance is printed in tokens: it goes from none to millions.
constexpr Metric kTokens{kKey, "imbalance", "tokens", 1};

struct Theory {
  double normal_estimate, lower, upper;
};

absl::StatusOr<Theory> TheoryOf(const Study& study, const Cell& cell) {
  const Family& family = study.families[cell.family];
  double deviation = kPromptDeviation;
  if (family.geometric) {
    const absl::StatusOr<SlotLoad> slot =
        GeometricSlotLoad(family.drift, kEndRate, (kLargestPrompt + 1) / 2.0, kPromptDeviation, 1);
    if (!slot.ok()) return slot.status();
    deviation = slot->deviation;
  }
  return Theory{FcfsNormalEstimate(cell.workers, cell.batch, deviation),
                FcfsLowerBound(cell.workers, cell.batch, kPromptDeviation),
                BfIoUpperBound(cell.workers, kLargestPrompt, family.geometric ? kEndRate : 1)};
}

std::vector<double> Imbalances(const Study& study, const SeededRuns& runs, size_t cell, size_t rule) {
  return runs.Values(study.At(cell, rule), kKey);
}

// FCFS's imbalance over the rule's, by seed; nothing where the rule has none at all.
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

void AddCell(std::vector<report::Cell>& row, const Study& study, size_t i) {
  const Cell& cell = study.cells[i];
  row = {study.families[cell.family].name, static_cast<int64_t>(study.families[cell.family].theorem),
         static_cast<int64_t>(cell.workers), static_cast<int64_t>(cell.batch)};
}

const std::vector<report::Column> kCellColumns = {
    {"loads", ""}, {"theorem", ""}, {"G", "workers"}, {"B", "slots"}};

report::Table FcfsTable(const Study& study, const SeededRuns& runs, const std::vector<Theory>& theory) {
  report::Table table;
  table.title = "FCFS beside theory";
  table.note =
      "Estimate: G m_G sqrt(B) times the deviation of a slot's load. Lower bound: c2 G sigma_s sqrt(B log "
      "G), "
      "c2 = 0.0671. +-: half width of the 95 % interval.";
  table.columns = kCellColumns;
  table.columns.insert(table.columns.end(), {{"imbalance", "tokens"},
                                             {"+-", "tokens", 2},
                                             {"normal estimate", "tokens"},
                                             {"measured / estimate", "", 4},
                                             {"+-", "", 2},
                                             {"lower bound", "tokens"},
                                             {"measured / bound", ""},
                                             {"warm-up", "steps"},
                                             {"counted", "steps"},
                                             {"pool", "requests"}});
  for (size_t i = 0; i < study.cells.size(); ++i) {
    std::vector<report::Cell>& row = table.rows.emplace_back();
    AddCell(row, study, i);
    const Estimate imbalance = runs.Mean(study.At(i, 0), kKey);
    AddEstimate(row, imbalance);
    row.emplace_back(theory[i].normal_estimate);
    AddEstimate(row, imbalance, 1 / theory[i].normal_estimate);
    row.emplace_back(theory[i].lower);
    row.emplace_back(imbalance.mean / theory[i].lower);
    row.emplace_back(study.cells[i].warmup);
    row.emplace_back(study.cells[i].fcfs_steps);
    row.emplace_back(study.cells[i].pool);
  }
  return table;
}

report::Table ImprovementTable(const Study& study, const SeededRuns& runs,
                               const std::vector<Theory>& theory) {
  report::Table table;
  table.title = "Improvement over FCFS";
  table.note =
      "Upper bound, of BF-IO with H = 0: (G - 1) s_max, over p where outputs are geometric. Overloaded: "
      "decisions "
      "of the run of seed 1 that met the theorems' condition. +-: half width of the 95 % interval.";
  table.columns = kCellColumns;
  table.columns.insert(table.columns.end(), {{"policy", ""},
                                             {"imbalance", "tokens"},
                                             {"+-", "tokens", 2},
                                             {"upper bound", "tokens"},
                                             {"times less than FCFS", ""},
                                             {"+-", "", 2},
                                             {"guaranteed", ""},
                                             {"overloaded", "%"},
                                             {"longest wait", "steps"},
                                             {"counted", "steps"}});
  for (size_t i = 0; i < study.cells.size(); ++i) {
    for (size_t rule = 1; rule < study.rules.size(); ++rule) {
      std::vector<report::Cell>& row = table.rows.emplace_back();
      AddCell(row, study, i);
      row.emplace_back(study.rules[rule].name);
      AddEstimate(row, runs.Mean(study.At(i, rule), kKey));
      row.emplace_back(theory[i].upper);
      if (const auto ratios = Improvement(study, runs, i, rule)) {
        AddEstimate(row, EstimateMean(*ratios));
      } else {
        row.emplace_back(std::string("infinite"));
        row.emplace_back();
      }
      row.emplace_back(theory[i].lower / theory[i].upper);
      row.emplace_back(100 * study.watches[study.At(i, rule)]->share());
      row.emplace_back(runs.Mean(study.At(i, rule), metrics::kWaitMax.key).mean);
      row.emplace_back(study.cells[i].steps);
    }
  }
  return table;
}

// The slope of log(values) on log(x), an estimate over seeds; nothing where a value is missing.
std::optional<Estimate> Slope(const std::vector<double>& x,
                              const std::vector<std::optional<std::vector<double>>>& values_by_cell) {
  if (x.size() < 2) return std::nullopt;
  std::vector<double> slopes;
  for (size_t seed = 0; seed < values_by_cell[0].value_or(std::vector<double>()).size(); ++seed) {
    std::vector<double> y;
    for (const auto& values : values_by_cell) {
      if (!values || (*values)[seed] <= 0) return std::nullopt;
      y.push_back((*values)[seed]);
    }
    slopes.push_back(LogLogSlope(x, y).mean);
  }
  if (slopes.empty()) return std::nullopt;
  return EstimateMean(slopes);
}

// The factor c with y = c x by least squares, and the largest deviation of y from it.
struct Fit {
  double factor = 0, largest_deviation = 0;
};

std::optional<Fit> ProportionalFit(const std::vector<double>& x,
                                   const std::vector<std::optional<std::vector<double>>>& values_by_cell) {
  double xx = 0, xy = 0;
  std::vector<double> y;
  for (size_t i = 0; i < x.size(); ++i) {
    if (!values_by_cell[i]) return std::nullopt;
    y.push_back(EstimateMean(*values_by_cell[i]).mean);
    xx += x[i] * x[i];
    xy += x[i] * y[i];
  }
  Fit fit;
  if (xx == 0) return std::nullopt;
  fit.factor = xy / xx;
  for (size_t i = 0; i < x.size(); ++i) {
    fit.largest_deviation = std::max(fit.largest_deviation, std::abs(y[i] / (fit.factor * x[i]) - 1));
  }
  return fit;
}

// A quantity of a family over one of the sweeps. Rule 0: FCFS's imbalance, divided by G; else the
// improvement.
struct Sweep {
  std::vector<double> batches, laws;
  std::vector<std::optional<std::vector<double>>> values;
};

Sweep MakeSweep(const Study& study, const SeededRuns& runs, const std::vector<size_t>& cells, size_t rule) {
  Sweep sweep;
  for (size_t i : cells) {
    const Cell& cell = study.cells[i];
    sweep.batches.push_back(cell.batch);
    sweep.laws.push_back(GrowthLaw(cell.workers, cell.batch));
    if (rule > 0) {
      sweep.values.push_back(Improvement(study, runs, i, rule));
      continue;
    }
    sweep.values.emplace_back(Imbalances(study, runs, i, 0));
    for (double& value : *sweep.values.back()) value /= cell.workers;
  }
  return sweep;
}

void AddSlope(std::vector<report::Cell>& row, const std::optional<Estimate>& slope) {
  if (slope) {
    AddEstimate(row, *slope);
  } else {
    row.insert(row.end(), 2, report::Cell());
  }
}

void AddFit(std::vector<report::Cell>& row, const std::optional<Fit>& fit) {
  row.emplace_back(fit ? fit->factor : kEmpty);
  row.emplace_back(fit ? 100 * fit->largest_deviation : kEmpty);
}

report::Table SlopeTable(const Study& study, const SeededRuns& runs, int32_t workers, int32_t batch) {
  report::Table table;
  table.title = "Growth with B and G";
  table.note = absl::StrCat(
      "Slopes of logarithms, an estimate over seeds each. Over B at G = ", workers, "; over G at B = ", batch,
      ", on sqrt(B log G). Theory: FCFS's imbalance has 0.5 in B; an improvement of at least a constant "
      "times "
      "sqrt(B log G) has 0.5 and 1 or more, if all of it is the theorem's. Factor: least squares of y = "
      "factor * "
      "sqrt(B log G), and the largest deviation from it. Empty: some run had no imbalance at all.");
  table.columns = {{"loads", ""},         {"theorem", ""},      {"of", ""},
                   {"slope in B", ""},    {"+-", "", 2},        {"factor over B", ""},
                   {"off by up to", "%"}, {"slope over G", ""}, {"+-", "", 2},
                   {"factor over G", ""}, {"off by up to", "%"}};
  for (size_t family = 0; family < study.families.size(); ++family) {
    for (size_t rule = 0; rule < study.rules.size(); ++rule) {
      std::vector<report::Cell>& row = table.rows.emplace_back();
      row = {study.families[family].name, static_cast<int64_t>(study.families[family].theorem),
             rule == 0 ? "FCFS's imbalance / G" : absl::StrCat("improvement, ", study.rules[rule].name)};
      const Sweep over_b = MakeSweep(study, runs, study.OverBatch(family, workers), rule);
      const Sweep over_g = MakeSweep(study, runs, study.OverWorkers(family, batch), rule);
      AddSlope(row, Slope(over_b.batches, over_b.values));
      AddFit(row, ProportionalFit(over_b.laws, over_b.values));
      AddSlope(row, Slope(over_g.laws, over_g.values));
      AddFit(row, ProportionalFit(over_g.laws, over_g.values));
    }
  }
  return table;
}

struct Axis {
  const char* name;
  report::Axis axis;
  double (*x)(const Cell& cell);
};

const Axis kOverB = {"B", {"slots per worker, B", "slots", true, {}, {}, {}}, [](const Cell& cell) -> double {
                       return cell.batch;
                     }};
const Axis kOverG = {"G", {"workers, G", "workers", true, {}, {}, {}}, [](const Cell& cell) -> double {
                       return cell.workers;
                     }};

report::Series ImbalanceLine(const Study& study, const SeededRuns& runs, const std::vector<size_t>& cells,
                             size_t rule, const Axis& axis) {
  report::Series series;
  series.name = study.rules[rule].name;
  for (size_t i : cells) AddPoint(series, axis.x(study.cells[i]), runs.Mean(study.At(i, rule), kKey));
  return series;
}

report::Series TheoryLine(const std::string& name, const Study& study, const std::vector<size_t>& cells,
                          const std::vector<Theory>& theory, double Theory::*value, const Axis& axis) {
  report::Series series;
  series.name = name;
  series.style = report::Series::Style::kDashed;
  for (size_t i : cells) {
    series.x.push_back(axis.x(study.cells[i]));
    series.y.push_back(theory[i].*value);
  }
  return series;
}

// Imbalance of all rules in one family, with the bounds.
report::Chart ImbalanceChart(const Study& study, const SeededRuns& runs, const std::vector<Theory>& theory,
                             size_t family, const std::vector<size_t>& cells, const Axis& axis) {
  report::Chart chart;
  chart.title = absl::StrCat("Imbalance over ", axis.name, ": ", study.families[family].name);
  chart.note = "Points at 0 do not show on this axis.";
  chart.x = axis.axis;
  chart.y = {"imbalance", "tokens", true, {}, {}, {}};
  for (size_t rule = 0; rule < study.rules.size(); ++rule) {
    chart.series.push_back(ImbalanceLine(study, runs, cells, rule, axis));
  }
  chart.series[0].strong = true;
  chart.series.push_back(
      TheoryLine("FCFS, normal estimate", study, cells, theory, &Theory::normal_estimate, axis));
  chart.series.push_back(TheoryLine("FCFS, lower bound", study, cells, theory, &Theory::lower, axis));
  chart.series.push_back(TheoryLine("BF-IO, upper bound", study, cells, theory, &Theory::upper, axis));
  return chart;
}

// Improvement by one rule in every family, and a line of the theorems' slope.
report::Chart ImprovementChart(const Study& study, const SeededRuns& runs, size_t rule, const Axis& axis,
                               int32_t workers, int32_t batch) {
  report::Chart chart;
  chart.title = absl::StrCat("Improvement of ", study.rules[rule].name, " over FCFS, over ", axis.name);
  chart.x = axis.axis;
  chart.y = {"FCFS's imbalance / the policy's", "", true, {}, {}, {}};
  report::Series law;
  law.name = "slope of sqrt(B log G)";
  law.style = report::Series::Style::kDashed;
  for (size_t family = 0; family < study.families.size(); ++family) {
    report::Series series;
    series.name = study.families[family].name;
    const std::vector<size_t> cells =
        &axis == &kOverB ? study.OverBatch(family, workers) : study.OverWorkers(family, batch);
    for (size_t i : cells) {
      const auto ratios = Improvement(study, runs, i, rule);
      if (!ratios) continue;
      AddPoint(series, axis.x(study.cells[i]), EstimateMean(*ratios));
      if (family != 1) continue;
      // Through the first point of the family that theory is sharpest for.
      const Cell &cell = study.cells[i], &first = study.cells[cells[0]];
      law.x.push_back(series.x.back());
      law.y.push_back(series.y.front() * GrowthLaw(cell.workers, cell.batch) /
                      GrowthLaw(first.workers, first.batch));
    }
    if (!series.x.empty()) chart.series.push_back(std::move(series));
  }
  chart.series.push_back(std::move(law));
  return chart;
}

void AddCharts(const Study& study, const SeededRuns& runs, const std::vector<Theory>& theory, int32_t workers,
               int32_t batch, Findings& findings) {
  for (size_t rule = 1; rule < study.rules.size(); ++rule) {
    for (const Axis* axis : {&kOverB, &kOverG}) {
      findings.charts.push_back(ImprovementChart(study, runs, rule, *axis, workers, batch));
    }
  }
  for (size_t family = 0; family < study.families.size(); ++family) {
    findings.charts.push_back(
        ImbalanceChart(study, runs, theory, family, study.OverBatch(family, workers), kOverB));
    findings.charts.push_back(
        ImbalanceChart(study, runs, theory, family, study.OverWorkers(family, batch), kOverG));
  }
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
    const double fcfs = runs.Mean(study.At(i, 0), kKey).mean;
    const double ratio = fcfs / theory[i].normal_estimate;
    least = std::min(least, ratio);
    most = std::max(most, ratio);
    least_over_bound = std::min(least_over_bound, fcfs / theory[i].lower);
    for (size_t rule = 1; rule < study.rules.size(); ++rule) {
      if (study.rules[rule].objective != "paper") continue;
      const double own = runs.Mean(study.At(i, rule), kKey).mean;
      ++cells;
      none += own == 0 ? 1 : 0;
      within += own <= theory[i].upper ? 1 : 0;
      exceeded += own > theory[i].upper ? 1 : 0;
    }
  }
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

absl::Status Report(const Study& study, const SeededRuns& runs, int32_t fixed_workers, int32_t fixed_batch,
                    Findings& findings) {
  std::vector<Theory> theory;
  for (const Cell& cell : study.cells) {
    absl::StatusOr<Theory> one = TheoryOf(study, cell);
    if (!one.ok()) return one.status();
    theory.push_back(*one);
  }
  AddText(study, runs, theory, findings);
  findings.tables.push_back(SlopeTable(study, runs, fixed_workers, fixed_batch));
  findings.tables.push_back(FcfsTable(study, runs, theory));
  findings.tables.push_back(ImprovementTable(study, runs, theory));
  AddCharts(study, runs, theory, fixed_workers, fixed_batch, findings);
  for (const Family& family : study.families) {
    findings.parameters.push_back({absl::StrCat("drift, ", family.name), family.drift});
  }
  return absl::OkStatus();
}

}  // namespace bfio::sim::scaling
