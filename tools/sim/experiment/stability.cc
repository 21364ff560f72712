// "Throughput-Optimal Scheduling Algorithms for LLM Inference and AI Agents", Figure 1 and what stands behind
// it: the same arrivals to one engine under four schedulers, below, near and above capacity.
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/cost/batch_time.h"
#include "tools/sim/experiment/experiments.h"
#include "tools/sim/experiment/network_study.h"
#include "tools/sim/network/examples.h"
#include "worker/scheduler/batch_scheduler.h"

namespace bfio::sim {
namespace {

constexpr int64_t kBudget = 512;
// Requests per second that a full batch after the other serves: 512 tokens in 179.9 ms, 200 tokens a request.
double Capacity() {
  return BatchCost().Capacity(kBudget) / 200;
}
constexpr double kFigureRate = 14;
constexpr double kRates[] = {5, 10, 13, 14, 15.65, 17.08};

NetworkCase CaseOf(const std::string& scheduler, double rate, double seconds) {
  NetworkCase c{absl::StrFormat("%s, %g requests/s", scheduler, rate),
                ParallelEngines(1, rate / Capacity()),
                {.order = CallOrder::kCallAge, .scheduler = scheduler, .horizon = seconds}};
  return c;
}

}  // namespace

absl::StatusOr<Findings> Stability(const ExperimentContext& context) {
  const auto long_s = static_cast<double>(context.Shortened(2000, 200));
  const auto short_s = static_cast<double>(context.Shortened(600, 180));
  const std::vector<std::string> schedulers = worker::SchedulerNames();
  std::vector<NetworkCase> cases;
  for (const std::string& scheduler : schedulers) cases.push_back(CaseOf(scheduler, kFigureRate, long_s));
  for (const double rate : kRates) {
    for (const std::string& scheduler : schedulers) cases.push_back(CaseOf(scheduler, rate, short_s));
  }
  absl::StatusOr<std::vector<NetworkFigures>> figures = RunNetworks(context, cases);
  if (!figures.ok()) return figures.status();

  const double capacity = BatchCost().Capacity(kBudget), threshold = 0.02 * capacity;
  Findings findings;
  findings.text = {
      absl::StrFormat(
          "Requests of 100 prompt and 100 answer tokens, Poisson, to one engine: a batch of x "
          "tokens takes 45.5 ms + 0.30 ms (x - 64) (Llama-3-70B on two A100), at most 512 tokens: "
          "%.3f tokens/ms, %.3f requests/s.",
          capacity / 1000, Capacity()),
      VerdictNote(context, "2 % of capacity")};
  findings.parameters = {
      {"token budget", absl::StrCat(kBudget)},
      {"seeds", absl::StrCat("1 to ", VerdictSeeds(context))},
      {"seconds", absl::StrFormat("%g in the chart, %g in the table of rates", long_s, short_s)}};
  report::Chart chart;
  chart.title = absl::StrFormat("Tokens that wait, %g requests/s (%.1f %% of capacity)", kFigureRate,
                                100 * kFigureRate / Capacity());
  chart.note = "Seed 1. The same arrivals for all.";
  chart.x = {"time", "s"};
  chart.y = {"tokens not yet computed", "tokens", true};
  report::Table at_figure;
  at_figure.title = chart.title;
  at_figure.columns = {{"scheduler", ""},
                       {"growth, median", "tokens/ms", 3},
                       {"verdict (false alarms)", ""},
                       {"latency", "s"},
                       {"+-", "s", 2}};
  for (size_t i = 0; i < schedulers.size(); ++i) {
    const NetworkFigures& of = (*figures)[i];
    chart.series.push_back(TokensLine(schedulers[i], of, 1));
    std::vector<report::Cell>& row = at_figure.rows.emplace_back();
    row.emplace_back(schedulers[i]);
    row.emplace_back(JudgeGrowth(of.slopes, threshold).median / 1000);
    row.emplace_back(VerdictText(of, threshold));
    AddEstimate(row, EstimateMean(of.latency));
  }
  report::Table rates;
  rates.title = "Rates";
  rates.note =
      "In the system: at the middle of the run. Growth that arrivals force on any scheduler: rate x 200 "
      "tokens - capacity.";
  rates.columns = {{"rate", "requests/s", 4},         {"scheduler", ""},
                   {"in the system", "requests"},     {"+-", "requests", 2},
                   {"growth", "tokens/ms", 3},        {"+-", "tokens/ms", 2},
                   {"forced growth", "tokens/ms", 3}, {"verdict (false alarms)", ""}};
  for (size_t i = schedulers.size(); i < cases.size(); ++i) {
    const NetworkFigures& of = (*figures)[i];
    const double rate = kRates[i / schedulers.size() - 1];
    std::vector<report::Cell>& row = rates.rows.emplace_back();
    row.emplace_back(rate);
    row.emplace_back(schedulers[i % schedulers.size()]);
    AddEstimate(row, EstimateMean(of.agents));
    AddEstimate(row, EstimateMean(of.slopes), 1e-3);
    row.emplace_back(std::max(0.0, 200 * rate - capacity) / 1000);
    row.emplace_back(VerdictText(of, threshold));
  }
  findings.tables = {std::move(at_figure), std::move(rates)};
  findings.charts = {std::move(chart)};
  return findings;
}

}  // namespace bfio::sim
