// Tables of the scaling experiment: FCFS beside theory, improvements and their growth.
#include <algorithm>
#include <cmath>
#include <optional>

#include "absl/strings/str_cat.h"
#include "tools/sim/experiment/columns.h"
#include "tools/sim/experiment/scaling.h"
#include "tools/sim/experiment/theory.h"

namespace bfio::sim::scaling {
namespace {

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
    const Estimate imbalance = runs.Mean(study.At(i, 0), kImbalanceKey);
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
      AddEstimate(row, runs.Mean(study.At(i, rule), kImbalanceKey));
      row.emplace_back(theory[i].upper);
      const double own = runs.Mean(study.At(i, rule), kImbalanceKey).mean;
      if (const auto ratios = Improvement(study, runs, i, rule)) {
        AddEstimate(row, EstimateMean(*ratios));
      } else if (own > 0) {
        // None in some runs: the means' ratio then, without an interval.
        row.emplace_back(runs.Mean(study.At(i, 0), kImbalanceKey).mean / own);
        row.emplace_back();
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

}  // namespace

void AddTables(const Study& study, const SeededRuns& runs, const std::vector<Theory>& theory,
               int32_t fixed_workers, int32_t fixed_batch, Findings& findings) {
  findings.tables.push_back(SlopeTable(study, runs, fixed_workers, fixed_batch));
  findings.tables.push_back(FcfsTable(study, runs, theory));
  findings.tables.push_back(ImprovementTable(study, runs, theory));
}

}  // namespace bfio::sim::scaling
