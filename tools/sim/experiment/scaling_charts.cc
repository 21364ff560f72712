// Charts of the scaling experiment: imbalance and improvement over B and G, theory dashed.
#include "absl/strings/str_cat.h"
#include "tools/sim/experiment/scaling.h"
#include "tools/sim/experiment/theory.h"

namespace bfio::sim::scaling {
namespace {

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
  for (size_t i : cells)
    AddPoint(series, axis.x(study.cells[i]), runs.Mean(study.At(i, rule), kImbalanceKey));
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

}  // namespace

void AddCharts(const Study& study, const SeededRuns& runs, const std::vector<Theory>& theory,
               int32_t fixed_workers, int32_t fixed_batch, Findings& findings) {
  for (size_t rule = 1; rule < study.rules.size(); ++rule) {
    for (const Axis* axis : {&kOverB, &kOverG}) {
      findings.charts.push_back(ImprovementChart(study, runs, rule, *axis, fixed_workers, fixed_batch));
    }
  }
  for (size_t family = 0; family < study.families.size(); ++family) {
    findings.charts.push_back(
        ImbalanceChart(study, runs, theory, family, study.OverBatch(family, fixed_workers), kOverB));
    findings.charts.push_back(
        ImbalanceChart(study, runs, theory, family, study.OverWorkers(family, fixed_batch), kOverG));
  }
}

}  // namespace bfio::sim::scaling
