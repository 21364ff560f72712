// "Online Scheduling for LLM Inference with KV Cache Constraints", Section 5.2: what the protection rules'
// alpha and beta do, and below which alpha greedy goes round in circles.
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tools/sim/experiment/experiments.h"
#include "tools/sim/experiment/kv_study.h"

namespace bfio::sim {
namespace {

struct Setting {
  double rate;
  int64_t memory;
};
// Circles depend on how large a request is against the memory: the paper's M, and what its formula gives.
constexpr Setting kSettings[] = {
    {50, kKvMemory}, {10, kKvMemory}, {50, kKvMemoryByFormula}, {10, kKvMemoryByFormula}};
constexpr int64_t kArrivals = 5'000;

struct Sweep {
  std::string name;
  // The rule for a value.
  std::string (*rule)(double value);
};

absl::StatusOr<Findings> Run(const ExperimentContext& context, const std::string& what,
                             const std::vector<Sweep>& sweeps, const std::vector<double>& values) {
  const int64_t requests = context.Shortened(kArrivals, 200);
  std::vector<KvPlan> plans;
  for (const Setting& setting : kSettings) {
    for (const Sweep& sweep : sweeps) {
      for (const double value : values)
        plans.push_back({{sweep.rule(value), {"lmsys", nullptr}, setting.rate, setting.memory}, requests});
    }
  }
  const auto runs = RunKv(context, plans);
  if (!runs.ok()) return runs.status();
  Findings findings;
  findings.parameters = KvParameters(context, requests);
  size_t at = 0;
  for (const auto& [rate, memory] : kSettings) {
    report::Table table;
    table.title = absl::StrFormat("%g requests per second, M = %d", rate, memory);
    table.note = "In circles: seeds for which the rule never ends. Thrown out: per request.";
    table.columns = {{what, "", 2}};
    report::Chart chart;
    chart.title = absl::StrFormat("Mean latency over %s, %g requests per second, M = %d", what, rate, memory);
    chart.note = "Left out where the rule goes round in circles for some seed.";
    chart.x = {what, ""};
    chart.y = {"mean latency", "s"};
    chart.y.min = 0;
    table.rows.resize(values.size());
    for (size_t v = 0; v < values.size(); ++v) table.rows[v].emplace_back(values[v]);
    for (const Sweep& sweep : sweeps) {
      for (const char* column : {"latency", "+-", "thrown out", "in circles"}) {
        table.columns.push_back(
            {absl::StrCat(sweep.name, ": ", column), column[0] == 'l' || column[0] == '+' ? "s" : ""});
      }
      report::Series& series = chart.series.emplace_back();
      series.name = sweep.name;
      double least = std::nan("");
      for (size_t v = 0; v < values.size(); ++v, ++at) {
        const std::vector<KvRun>& of = (*runs)[at];
        const Estimate latency = KvLatency(of);
        AddEstimate(table.rows[v], latency);
        double evictions = 0;
        int64_t looped = 0;
        for (const KvRun& run : of) evictions += static_cast<double>(run.evictions), looped += run.looped;
        table.rows[v].emplace_back(evictions / static_cast<double>(of.size()) /
                                   static_cast<double>(requests));
        table.rows[v].emplace_back(looped);
        if (std::isnan(latency.mean)) {
          least = std::nan("");
        } else {
          AddPoint(series, values[v], latency);
          if (std::isnan(least)) least = values[v];
        }
      }
      findings.text.push_back(
          std::isnan(least)
              ? absl::StrFormat("%g per second, M = %d, %s: in circles up to the largest %s.", rate, memory,
                                sweep.name, what)
              : absl::StrFormat("%g per second, M = %d, %s: it ends for every seed from %s = %.2f on.", rate,
                                memory, sweep.name, what, least));
    }
    findings.tables.push_back(std::move(table));
    findings.charts.push_back(std::move(chart));
  }
  return findings;
}

}  // namespace

absl::StatusOr<Findings> KvAlpha(const ExperimentContext& context) {
  std::vector<double> values;
  for (int percent = 0; percent <= 30; ++percent) {
    if (percent % 5 == 0 || percent >= 10) values.push_back(0.01 * percent);
  }
  for (const double more : {0.35, 0.4, 0.5}) values.push_back(more);
  return Run(context, "alpha",
             {{"greedy", [](double alpha) { return absl::StrFormat("protect:alpha=%.2f", alpha); }},
              {"clearing, beta 0.1",
               [](double alpha) { return absl::StrFormat("protect:alpha=%.2f,beta=0.1", alpha); }}},
             values);
}

absl::StatusOr<Findings> KvBeta(const ExperimentContext& context) {
  return Run(
      context, "beta",
      {{"alpha 0.2", [](double beta) { return absl::StrFormat("protect:alpha=0.2,beta=%.3f", beta); }},
       {"alpha 0.1", [](double beta) { return absl::StrFormat("protect:alpha=0.1,beta=%.3f", beta); }}},
      {0.005, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.5, 0.75, 1});
}

}  // namespace bfio::sim
