// chain-dispatch: Figure 5 of "Serving Chain-structured Jobs with Large Memory Footprints".
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tools/sim/experiment/chain_study.h"
#include "tools/sim/experiment/experiments.h"

namespace bfio::sim {
namespace {

constexpr double kLoads[] = {0.1, 0.3, 0.5, 0.7, 0.8, 0.9};
constexpr int64_t kJobs = 60'000;

}  // namespace

absl::StatusOr<Findings> ChainDispatch(const ExperimentContext& context) {
  const absl::StatusOr<RttMatrix> rtts = StudyRtts(context, kChainServers);
  if (!rtts.ok()) return rtts.status();
  const std::vector<std::string>& rules = core::ChainDispatcherNames();
  const size_t loads = std::size(kLoads);
  const int64_t jobs = context.Shortened(kJobs, 500);
  std::vector<std::string> names;
  for (const double load : kLoads) {
    for (const std::string& rule : rules) names.push_back(absl::StrCat(rule, " at load ", load));
  }
  ByVariantAndSeed response(names.size(), context.seeds), service(loads, context.seeds),
      lower(loads, context.seeds), upper(loads, context.seeds);
  const absl::Status status =
      ForVariantsAndSeeds(context, names, [&](size_t v, uint64_t seed, const Runner::GoOn& go_on) {
        const size_t at = v / rules.size();
        const WideAreaPool pool = DrawPool(*rtts, kChainServers, kChainFast, seed);
        const core::ChainPlan plan = core::PlanWithReserve(pool.servers, BloomService(), kChainReserve, {});
        const double rate = kLoads[at] * plan.rate;
        const MeanTimes means = SimulateChains(plan.chains, rules[v % rules.size()], rate, jobs, seed, go_on);
        response.at(v, seed) = means.response;
        if (v % rules.size() != 0) return absl::OkStatus();
        const core::Occupancy bounds = core::OccupancyBounds(core::Rates(plan.chains), rate);
        service.at(at, seed) = means.service / means.response;
        lower.at(at, seed) = bounds.lower / rate;
        upper.at(at, seed) = bounds.upper / rate;
        return absl::OkStatus();
      });
  if (!status.ok()) return status;

  report::Table table;
  table.title = "Mean response by rule and load";
  table.note =
      "Against: the rule's response divided by jffc's, pool by pool. Share: service of jffc's response.";
  table.columns = {{"load", ""}};
  for (const std::string& rule : rules) table.columns.push_back({rule, "s"});
  for (size_t r = 1; r < rules.size(); ++r) {
    table.columns.push_back({absl::StrCat(rules[r], " against"), "x", 4});
    table.columns.push_back({"+-", ""});
  }
  table.columns.insert(table.columns.end(), {{"lower bound", "s"}, {"upper bound", "s"}, {"share", "%"}});
  report::Chart rivals, bounds;
  rivals.title = "Mean response over load";
  bounds.title = "JFFC between its bounds";
  for (report::Chart* chart : {&rivals, &bounds}) {
    chart->x = {"load", ""};
    chart->y = {"mean response", "s"};
  }
  for (const std::string& rule : rules) rivals.series.emplace_back().name = rule;
  rivals.series[0].strong = true;
  for (const char* name : {"lower bound", "jffc", "upper bound"}) bounds.series.emplace_back().name = name;
  for (size_t at = 0; at < loads; ++at) {
    auto& row = table.rows.emplace_back(std::vector<report::Cell>{kLoads[at]});
    for (size_t r = 0; r < rules.size(); ++r) {
      const Estimate mean = response.Mean(at * rules.size() + r);
      row.emplace_back(mean.mean);
      AddPoint(rivals.series[r], kLoads[at], mean);
      if (r == 0) AddPoint(bounds.series[1], kLoads[at], mean);
    }
    for (size_t r = 1; r < rules.size(); ++r)
      AddEstimate(row, EstimateRatio(response.of(at * rules.size() + r), response.of(at * rules.size())));
    row.insert(row.end(), {lower.Mean(at).mean, upper.Mean(at).mean, 100 * service.Mean(at).mean});
    AddPoint(bounds.series[0], kLoads[at], lower.Mean(at));
    AddPoint(bounds.series[2], kLoads[at], upper.Mean(at));
  }
  Findings findings;
  findings.text = {
      "Rules that balance over the chains of one composition (GBP-CR with c = 7 on all servers, GCA), under "
      "Poisson "
      "arrivals and exponential sizes: all rules get the same jobs.",
      absl::StrFormat("At load 0.5, %.0f %% of JFFC's mean response is service.",
                      100 * service.Mean(2).mean)};
  findings.parameters = ChainParameters(context);
  findings.parameters.emplace_back("jobs of a run", absl::StrCat(jobs));
  findings.tables = {std::move(table)};
  findings.charts = {std::move(rivals), std::move(bounds)};
  return findings;
}

}  // namespace bfio::sim
