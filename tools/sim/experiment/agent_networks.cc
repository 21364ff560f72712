// "Throughput-Optimal Scheduling Algorithms for LLM Inference and AI Agents", Section 4: networks of engines
// that agents walk through, under orders that look at the call and orders that look at its parent.
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/cost/batch_time.h"
#include "tools/sim/experiment/experiments.h"
#include "tools/sim/experiment/network_study.h"
#include "tools/sim/network/examples.h"

namespace bfio::sim {
namespace {

constexpr CallOrder kOrders[] = {CallOrder::kExitFirst, CallOrder::kEntryFirst, CallOrder::kCallAge,
                                 CallOrder::kParentAge, CallOrder::kParentDue};

std::string OrderText(CallOrder order) {
  switch (order) {
    case CallOrder::kExitFirst:
      return "last call first";
    case CallOrder::kEntryFirst:
      return "first call first";
    case CallOrder::kCallAge:
      return "oldest call first";
    case CallOrder::kParentAge:
      return "oldest parent first (age)";
    case CallOrder::kParentDue:
      return "parent due first (due)";
  }
  return "";
}

struct Study {
  std::string name;
  Network (*network)(double load);
  std::vector<double> loads;
  double horizon;
  int64_t slots;
  std::string unit;
};

std::vector<NetworkCase> CasesOf(const ExperimentContext& context, const Study& study) {
  std::vector<NetworkCase> cases;
  for (const double load : study.loads) {
    for (const CallOrder order : kOrders) {
      cases.push_back(
          {absl::StrFormat("%s, load %g, %s", study.name, load, CallOrderName(order)),
           study.network(load),
           {.order = order,
            .slots = study.slots,
            .horizon = static_cast<double>(context.Shortened(static_cast<int64_t>(study.horizon),
                                                             static_cast<int64_t>(study.horizon / 10)))}});
    }
  }
  return cases;
}

report::Table TableOf(const Study& study, const std::vector<NetworkFigures>& figures, size_t first,
                      double threshold) {
  report::Table table;
  table.title = absl::StrCat(study.name, ": what waits, and how long agents take");
  table.note =
      "Load: of the busiest engine. Growth: of the peaks. Most tokens: the largest of a run, mean over the "
      "runs. Latency: of "
      "agents "
      "that came in the second half and ended, first call to last; without meaning where tokens grow.";
  table.columns = {{"load", "", 3},
                   {"order", ""},
                   {"most tokens", "tokens", 3},
                   {"growth, median", absl::StrCat("tokens/", study.unit), 3},
                   {"verdict (false alarms)", ""},
                   {"latency", study.unit},
                   {"+-", study.unit, 2},
                   {"latency p99", study.unit}};
  size_t i = first;
  for (const double load : study.loads) {
    for (const CallOrder order : kOrders) {
      const NetworkFigures& of = figures[i++];
      std::vector<report::Cell>& row = table.rows.emplace_back();
      row.emplace_back(load);
      row.emplace_back(OrderText(order));
      row.emplace_back(EstimateMean(of.peaks).mean);
      row.emplace_back(JudgeGrowth(of.peak_growths, threshold).median);
      row.emplace_back(VerdictText(of, threshold));
      AddEstimate(row, EstimateMean(of.latency));
      row.emplace_back(EstimateMean(of.latency_p99).mean);
    }
  }
  return table;
}

// What each order does to each type of agent.
report::Table TypesTable(const Study& study, const std::vector<NetworkFigures>& figures, size_t first) {
  report::Table table;
  table.title = absl::StrCat(study.name, ": who waits for whom");
  table.note =
      "Latencies by type of agent, means over the runs. One of a single call is what a request without a "
      "parent is.";
  table.columns = {{"load", "", 3}, {"order", ""}};
  const Network network = study.network(0.5);
  for (const AgentType& type : network.types) {
    table.columns.push_back({type.name, study.unit});
    table.columns.push_back({"p99", study.unit});
  }
  size_t i = first;
  for (const double load : study.loads) {
    for (const CallOrder order : kOrders) {
      const NetworkFigures& of = figures[i++];
      std::vector<report::Cell>& row = table.rows.emplace_back();
      row.emplace_back(load);
      row.emplace_back(OrderText(order));
      for (size_t t = 0; t < network.types.size(); ++t) {
        row.emplace_back(EstimateMean(of.type_latency[t]).mean);
        row.emplace_back(EstimateMean(of.type_p99[t]).mean);
      }
    }
  }
  return table;
}

}  // namespace

absl::StatusOr<Findings> RybkoStolyarStudy(const ExperimentContext& context) {
  const Study study{"Rybko-Stolyar", RybkoStolyar, {0.5, 0.6, 0.8, 0.9, 0.97}, 8000, 0, "slot"};
  const std::vector<NetworkCase> cases = CasesOf(context, study);
  absl::StatusOr<std::vector<NetworkFigures>> figures = RunNetworks(context, cases);
  if (!figures.ok()) return figures.status();
  const double threshold = 0.02 * RybkoStolyar(0.5).token_budget;
  Findings findings;
  findings.text = {
      absl::StrFormat(
          "Two engines, 768 tokens a slot. Agents A call engine 1 briefly (32 prompt, 32 answer tokens), "
          "then engine 2 at length (512, 32); agents B the other way round; Poisson lengths and arrivals. "
          "Whoever finishes what is about to leave first never serves the two long classes at once: they "
          "need a full engine together from a load of %.3f on, far below 1.",
          RybkoStolyarThreshold()),
      VerdictNote(context, "2 % of what an engine can do")};
  findings.parameters = {{"slots of a run", absl::StrFormat("%g", cases[0].options.horizon)},
                         {"seeds", absl::StrCat("1 to ", VerdictSeeds(context))}};
  report::Chart chart;
  chart.title = "Tokens that wait in the Rybko-Stolyar network at load 0.9";
  chart.note = "Seed 1. The same arrivals for all.";
  chart.x = {"time", "slots"};
  chart.y = {"tokens not yet computed", "tokens", true};
  for (size_t i = 0; i < cases.size(); ++i) {
    if (study.loads[i / std::size(kOrders)] != 0.9) continue;
    const CallOrder order = kOrders[i % std::size(kOrders)];
    chart.series.push_back(TokensLine(OrderText(order), (*figures)[i], 1));
    chart.series.back().strong = order == CallOrder::kParentDue;
  }
  findings.tables = {TableOf(study, *figures, 0, threshold)};
  findings.charts = {std::move(chart)};
  return findings;
}

absl::StatusOr<Findings> ForkJoinStudy(const ExperimentContext& context) {
  const std::vector<double> loads = {0.8, 0.9, 0.97};
  const Study studies[] = {{"Fork and join (Section 4.3)", ForkJoin, loads, 1000, 0, "s"},
                           {"Cycles between two engines", Cycles, loads, 1000, 0, "s"},
                           {"Long and short agents, 160 slots", LongAndShort, loads, 6000, 160, "slot"}};
  std::vector<NetworkCase> cases;
  for (const Study& study : studies) {
    for (NetworkCase& c : CasesOf(context, study)) cases.push_back(std::move(c));
  }
  absl::StatusOr<std::vector<NetworkFigures>> figures = RunNetworks(context, cases);
  if (!figures.ok()) return figures.status();
  Findings findings;
  findings.text = {
      "Fork and join: engine 0, then 1 and 2 at once, then 3 when both have ended. Cycles: plan, code and "
      "review "
      "over two engines, and a debate of five turns between them. Long and short: agents of one, three and "
      "twelve "
      "calls in sequence on two engines that any call may go to.",
      VerdictNote(context, "5 % of what an engine can do")};
  findings.parameters = {{"seeds", absl::StrCat("1 to ", VerdictSeeds(context))}};
  size_t first = 0;
  for (const Study& study : studies) {
    const Network network = study.network(0.5);
    const double threshold =
        0.05 * static_cast<double>(network.token_budget) / network.BatchTime(network.token_budget);
    findings.tables.push_back(TableOf(study, *figures, first, threshold));
    report::Chart chart;
    chart.title = absl::StrCat(study.name, ": mean latency of an agent");
    chart.x = {"load of the busiest engine", ""};
    chart.y = {"latency", study.unit, true};
    for (size_t o = 0; o < std::size(kOrders); ++o) {
      report::Series line{OrderText(kOrders[o])};
      for (size_t l = 0; l < loads.size(); ++l)
        AddPoint(line, loads[l], EstimateMean((*figures)[first + l * std::size(kOrders) + o].latency));
      line.strong = kOrders[o] == CallOrder::kParentDue;
      chart.series.push_back(std::move(line));
    }
    findings.charts.push_back(std::move(chart));
    if (network.types.size() > 1) findings.tables.push_back(TypesTable(study, *figures, first));
    first += loads.size() * std::size(kOrders);
  }
  return findings;
}

absl::StatusOr<Findings> EnginesStudy(const ExperimentContext& context) {
  const struct {
    Routing routing;
    const char* name;
  } routings[] = {{Routing::kRandom, "random"},
                  {Routing::kFewestCalls, "fewest requests"},
                  {Routing::kFewestTokens, "fewest tokens"}};
  const int32_t engines[] = {1, 2, 4, 8};
  const double loads[] = {0.9, 0.97, 1.1};
  const auto seconds = static_cast<double>(context.Shortened(500, 100));
  std::vector<NetworkCase> cases;
  for (const int32_t k : engines) {
    for (const double load : loads) {
      for (const auto& r : routings) {
        cases.push_back({absl::StrFormat("%d engines, load %g, %s", k, load, r.name),
                         ParallelEngines(k, load),
                         {.order = CallOrder::kCallAge, .routing = r.routing, .horizon = seconds}});
      }
    }
  }
  const size_t parallel = cases.size();
  for (const double load : loads) {
    cases.push_back({absl::StrFormat("two types, load %g", load),
                     TwoTypes(load),
                     {.order = CallOrder::kCallAge, .horizon = 2 * seconds}});
  }
  absl::StatusOr<std::vector<NetworkFigures>> figures = RunNetworks(context, cases);
  if (!figures.ok()) return figures.status();
  const double capacity = BatchCost().Capacity(512);
  Findings findings;
  findings.text = {
      "Proposition 1: K equal engines with sarathi are stable up to K times the load of one, whoever a "
      "request goes "
      "to. Section 4.2: two types on one engine, 50 + 350 and 600 + 60 tokens, up to the sum of their loads.",
      VerdictNote(context, "5 % of capacity")};
  findings.parameters = {{"seconds", absl::StrFormat("%g, twice that for two types", seconds)},
                         {"seeds", absl::StrCat("1 to ", VerdictSeeds(context))}};
  report::Table table;
  table.title = "Engines in parallel, and two types on one";
  table.columns = {{"case", ""},
                   {"growth of capacity, median", "", 3},
                   {"verdict (false alarms)", ""},
                   {"latency", "s"},
                   {"+-", "s", 2},
                   {"latency p99", "s"}};
  for (size_t i = 0; i < cases.size(); ++i) {
    const NetworkFigures& of = (*figures)[i];
    const double all = capacity * cases[i].network.engines;
    std::vector<report::Cell>& row = table.rows.emplace_back();
    row.emplace_back(cases[i].name);
    row.emplace_back(JudgeGrowth(of.slopes, 0.05 * all).median / all);
    row.emplace_back(VerdictText(of, 0.05 * all));
    AddEstimate(row, EstimateMean(of.latency));
    row.emplace_back(EstimateMean(of.latency_p99).mean);
  }
  report::Chart chart;
  chart.title = "Mean latency at 97 % of K engines";
  chart.x = {"engines K", ""};
  chart.y = {"latency", "s"};
  for (size_t r = 0; r < std::size(routings); ++r) {
    report::Series line{routings[r].name};
    for (size_t i = 0; i < parallel; ++i) {
      const size_t k = i / (std::size(loads) * std::size(routings)),
                   l = i / std::size(routings) % std::size(loads);
      if (i % std::size(routings) == r && loads[l] == 0.97)
        AddPoint(line, engines[k], EstimateMean((*figures)[i].latency));
    }
    chart.series.push_back(std::move(line));
  }
  findings.tables = {std::move(table)};
  findings.charts = {std::move(chart)};
  return findings;
}

}  // namespace bfio::sim
