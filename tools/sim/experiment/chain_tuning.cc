// chain-tuning: Figures 6 and 7 of "Serving Chain-structured Jobs with Large Memory Footprints".
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tools/sim/experiment/chain_study.h"
#include "tools/sim/experiment/experiments.h"

namespace bfio::sim {
namespace {

constexpr double kDemands[] = {0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8};
// The demand whose curves over c are drawn.
constexpr size_t kDrawn = 1;
constexpr int64_t kJobs = 20'000;
constexpr double kNever = std::numeric_limits<double>::infinity();

constexpr core::TuningGoal kGoals[] = {core::TuningGoal::kSurrogate, core::TuningGoal::kLowerBound,
                                       core::TuningGoal::kUpperBound};
constexpr const char* kGoalNames[] = {"surrogate", "lower bound", "upper bound"};

// One pool under one demand, by c from 1.
struct Curve {
  std::vector<core::ReserveCandidate> candidates;
  std::vector<double> simulated;  // response; infinity where the target load is not met

  // The smallest c of the least simulated response, by index; -1 for none.
  int64_t Best() const {
    const auto at = std::min_element(simulated.begin(), simulated.end());
    return at == simulated.end() || std::isinf(*at) ? -1 : at - simulated.begin();
  }
};

Curve Simulate(const WideAreaPool& pool, double rate, int64_t jobs, uint64_t seed,
               const Runner::GoOn& go_on) {
  const core::Demand demand = {rate, kChainTargetLoad};
  Curve curve;
  curve.candidates = core::SweepReserve(pool.servers, BloomService(), demand);
  for (const core::ReserveCandidate& candidate : curve.candidates) {
    if (!candidate.meets) {
      curve.simulated.push_back(kNever);
      continue;
    }
    const core::ChainPlan plan = core::PlanWithReserve(pool.servers, BloomService(), candidate.c, demand);
    // The same jobs for every c.
    curve.simulated.push_back(SimulateChains(plan.chains, "jffc", rate, jobs, seed, go_on).response);
  }
  return curve;
}

using Curves = std::vector<std::vector<Curve>>;  // by demand and seed

report::Chart DrawCurves(const std::vector<Curve>& curves, double demand) {
  report::Chart chart;
  chart.title = absl::StrFormat("Mean response over c, %g jobs/s", demand);
  chart.note = "Seed 1's pool. Simulated: JFFC; c K(c) is divided by the demand.";
  chart.x = {"c", "jobs per block"};
  chart.y = {"mean response", "s"};
  chart.y.min = 0;
  for (const char* name : {"simulated", "lower bound", "upper bound", "c K(c) / demand"})
    chart.series.emplace_back().name = name;
  chart.series[0].strong = true;
  const Curve& curve = curves[0];
  for (size_t i = 0; i < curve.candidates.size(); ++i) {
    const core::ReserveCandidate& candidate = curve.candidates[i];
    const double values[] = {curve.simulated[i], candidate.lower, candidate.upper,
                             candidate.disjoint_meets ? candidate.surrogate() / demand : kNever};
    for (size_t s = 0; s < std::size(values); ++s) {
      chart.series[s].x.push_back(static_cast<double>(candidate.c));
      chart.series[s].y.push_back(values[s]);
    }
  }
  return chart;
}

report::Table CurveTable(const std::vector<Curve>& curves, double demand) {
  report::Table table;
  table.title = absl::StrFormat("Over c, %g jobs/s, seed 1", demand);
  table.columns = {{"c", ""},          {"K(c)", ""},        {"c K(c) / demand", "s"}, {"lower bound", "s"},
                   {"simulated", "s"}, {"upper bound", "s"}};
  for (size_t i = 0; i < curves[0].candidates.size(); ++i) {
    const core::ReserveCandidate& candidate = curves[0].candidates[i];
    table.rows.push_back({candidate.c, candidate.disjoint_chains, candidate.surrogate() / demand,
                          candidate.lower, curves[0].simulated[i], candidate.upper});
  }
  return table;
}

// What each way of tuning costs, over demand.
struct Picks {
  report::Table table;
  report::Chart chart;
  int64_t near = 0, pools = 0;  // the lower bound's c within one of the simulated best
};

Picks Compare(const Curves& curves) {
  Picks picks;
  picks.table.title = "What picks c, and what it costs";
  picks.table.note =
      "Mean c over the seeds, and the simulated response at it above the simulated least. Within one: pools "
      "in "
      "which the lower bound's c is at most one from the simulated best.";
  picks.table.columns = {{"demand", "jobs/s"}, {"simulated best c", ""}};
  for (const char* name : kGoalNames) {
    picks.table.columns.push_back({absl::StrCat(name, " c"), ""});
    picks.table.columns.push_back({"costs", "%"});
  }
  picks.table.columns.insert(picks.table.columns.end(), {{"within one", ""}, {"pools", ""}});
  picks.chart.title = "The c that is picked, over demand";
  picks.chart.x = {"demand", "jobs/s"};
  picks.chart.y = {"c", "jobs per block"};
  picks.chart.y.min = 0;
  for (const char* name : {"simulated best", kGoalNames[0], kGoalNames[1], kGoalNames[2]})
    picks.chart.series.emplace_back().name = name;
  picks.chart.series[0].strong = true;
  for (size_t d = 0; d < curves.size(); ++d) {
    std::vector<std::vector<double>> c(1 + std::size(kGoals)), costs(std::size(kGoals));
    int64_t near = 0, pools = 0;
    for (const Curve& curve : curves[d]) {
      const int64_t best = curve.Best();
      if (best < 0) continue;
      ++pools;
      c[0].push_back(static_cast<double>(curve.candidates[best].c));
      for (size_t g = 0; g < std::size(kGoals); ++g) {
        const core::ReserveCandidate* pick = core::BestReserve(curve.candidates, kGoals[g]);
        if (pick == nullptr) continue;
        const auto at = static_cast<size_t>(pick - curve.candidates.data());
        c[g + 1].push_back(static_cast<double>(pick->c));
        costs[g].push_back(100 * (curve.simulated[at] / curve.simulated[best] - 1));
        if (kGoals[g] == core::TuningGoal::kLowerBound)
          near += std::abs(pick->c - curve.candidates[best].c) <= 1;
      }
    }
    picks.near += near;
    picks.pools += pools;
    const auto mean = [](const std::vector<double>& x) {
      return x.empty() ? std::nan("") : EstimateMean(x).mean;
    };
    auto& row = picks.table.rows.emplace_back(std::vector<report::Cell>{kDemands[d], mean(c[0])});
    for (size_t g = 0; g < std::size(kGoals); ++g) {
      row.emplace_back(mean(c[g + 1]));
      row.emplace_back(mean(costs[g]));
    }
    row.insert(row.end(), {near, pools});
    for (size_t s = 0; s < c.size(); ++s) {
      if (!c[s].empty()) AddPoint(picks.chart.series[s], kDemands[d], EstimateMean(c[s]));
    }
  }
  return picks;
}

}  // namespace

absl::StatusOr<Findings> ChainTuning(const ExperimentContext& context) {
  const absl::StatusOr<RttMatrix> rtts = StudyRtts(context, kChainServers);
  if (!rtts.ok()) return rtts.status();
  const int64_t jobs = context.Shortened(kJobs, 200);
  std::vector<std::string> names;
  for (const double demand : kDemands) names.push_back(absl::StrCat(demand, " jobs/s"));
  Curves curves(names.size(), std::vector<Curve>(context.seeds));
  const absl::Status status =
      ForVariantsAndSeeds(context, names, [&](size_t v, uint64_t seed, const Runner::GoOn& go_on) {
        curves[v][seed - 1] =
            Simulate(DrawPool(*rtts, kChainServers, kChainFast, seed), kDemands[v], jobs, seed, go_on);
        return absl::OkStatus();
      });
  if (!status.ok()) return status;
  Picks picks = Compare(curves);
  Findings findings;
  findings.text = {
      "The cache reservation c of GBP-CR: small c gives short chains, large c many jobs at once. Which c do "
      "the "
      "surrogate (14) and Theorem 3.7's bounds pick, and which one is best when the jobs are simulated?",
      absl::StrCat("The lower bound's c is within one of the simulated best in ", picks.near, " of ",
                   picks.pools, " pools and demands.")};
  findings.parameters = ChainParameters(context);
  findings.parameters.emplace_back("jobs of a run", absl::StrCat(jobs));
  findings.tables = {std::move(picks.table), CurveTable(curves[kDrawn], kDemands[kDrawn])};
  findings.charts = {DrawCurves(curves[kDrawn], kDemands[kDrawn]), std::move(picks.chart)};
  return findings;
}

}  // namespace bfio::sim
