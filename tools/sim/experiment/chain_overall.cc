// chain-overall: Figure 8 of "Serving Chain-structured Jobs with Large Memory Footprints".
#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tools/sim/experiment/chain_rivals.h"
#include "tools/sim/experiment/chain_study.h"
#include "tools/sim/experiment/experiments.h"

namespace bfio::sim {
namespace {

constexpr int64_t kCounts[] = {10, 20, 30, 40};
constexpr double kShares[] = {0.1, 0.2, 0.3, 0.4};
constexpr int64_t kJobs = 5'000;
// BLOOM-176B's block in NF4 as PETALS reckons it, with the cache of 4,096 tokens of one session.
constexpr double kPetalsBlockGb = 2466437120 * 0.53125 * 1.01 * 1e-9 + 2.0 * 14336 * 4096 * 2 * 1e-9;

enum Way : size_t { kTuned, kFixed, kAll, kPetals, kSlices, kBprr, kWays };
constexpr const char* kNames[kWays] = {"composed, c tuned",
                                       "composed, c = 7",
                                       "composed on all servers, c tuned",
                                       "PETALS-like",
                                       "PETALS-like, four blocks a slice",
                                       "BPRR-like"};

struct Mix {
  int64_t servers = 0;
  double fast = 0;
};

// Mean response of each way on one pool; NaN where the pool does not carry the demand so.
std::vector<double> Serve(const WideAreaPool& pool, int64_t jobs, uint64_t seed, const Runner::GoOn& go_on) {
  std::vector<double> response(kWays, std::nan(""));
  const core::Demand demand = {kChainDemand, kChainTargetLoad};
  const core::Demand all = {kChainDemand, kChainTargetLoad, /*use_all=*/true};
  const auto composed = [&](Way way, int64_t c, const core::Demand& of) {
    const core::ChainPlan plan = core::PlanWithReserve(pool.servers, BloomService(), c, of);
    if (plan.rate > kChainDemand)
      response[way] = SimulateChains(plan.chains, "jffc", kChainDemand, jobs, seed, go_on).response;
  };
  const auto tuned = [&](Way way, const core::Demand& of) {
    const auto sweep = core::SweepReserve(pool.servers, BloomService(), of);
    const core::ReserveCandidate* best = core::BestReserve(sweep, core::TuningGoal::kLowerBound);
    if (best != nullptr) composed(way, best->c, of);
  };
  tuned(kTuned, demand);
  composed(kFixed, kChainReserve, demand);
  tuned(kAll, all);
  const std::vector<ChainJob> same = PoissonJobs(kChainDemand, jobs, seed);
  RivalSetting setting = {.service = BloomService(), .job = kBloomJob, .petals_block_memory = kPetalsBlockGb};
  for (const Way way : {kPetals, kSlices}) {
    setting.petals_slices = way == kSlices;
    const auto petals = ServeByPetals(pool, setting, same, seed);
    if (petals.ok()) response[way] = MeansOf(*petals).response;
  }
  const auto bprr = ServeByBprr(pool, setting, kChainDemand, same);
  if (bprr.ok()) response[kBprr] = MeansOf(*bprr).response;
  return response;
}

}  // namespace

absl::StatusOr<Findings> ChainOverall(const ExperimentContext& context) {
  const absl::StatusOr<RttMatrix> rtts = StudyRtts(context, kCounts[std::size(kCounts) - 1]);
  if (!rtts.ok()) return rtts.status();
  const int64_t jobs = context.Shortened(kJobs, 200);
  std::vector<Mix> mixes;
  std::vector<std::string> names;
  for (const int64_t count : kCounts) {
    for (const double fast : kShares) {
      mixes.push_back({count, fast});
      names.push_back(absl::StrCat(count, " servers, share fast ", fast));
    }
  }
  std::vector<ByVariantAndSeed> response(kWays, ByVariantAndSeed(names.size(), context.seeds));
  const absl::Status status =
      ForVariantsAndSeeds(context, names, [&](size_t v, uint64_t seed, const Runner::GoOn& go_on) {
        const auto found = Serve(DrawPool(*rtts, mixes[v].servers, mixes[v].fast, seed), jobs, seed, go_on);
        for (size_t way = 0; way < kWays; ++way) response[way].at(v, seed) = found[way];
        return absl::OkStatus();
      });
  if (!status.ok()) return status;

  report::Table table;
  table.title = "Mean response by servers and mix, 0.2 jobs/s";
  table.note =
      "Empty: the system does not carry the demand on any of the pools. Below: how much lower the response "
      "of the "
      "tuned composition, and of the one on all servers, is than the rival's, over the means.";
  table.columns = {{"servers", ""}, {"share fast", ""}};
  for (const char* name : kNames) {
    table.columns.push_back({name, "s"});
    table.columns.push_back({"+-", "s"});
  }
  table.columns.insert(
      table.columns.end(),
      {{"below PETALS", "%"}, {"below BPRR", "%"}, {"all below PETALS", "%"}, {"all below BPRR", "%"}});
  std::vector<report::Chart> charts(2);
  double least = 100, most = -100;
  for (size_t v = 0; v < mixes.size(); ++v) {
    auto& row = table.rows.emplace_back(std::vector<report::Cell>{mixes[v].servers, mixes[v].fast});
    double means[kWays];
    for (size_t way = 0; way < kWays; ++way) {
      const Estimate mean = response[way].Mean(v);
      means[way] = mean.samples > 0 ? mean.mean : std::nan("");
      if (mean.samples > 0) {
        AddEstimate(row, mean);
      } else {
        row.insert(row.end(), 2, report::Cell());
      }
    }
    for (const Way own : {kTuned, kAll}) {
      for (const Way rival : {kPetals, kBprr}) {
        const double below = 100 * (1 - means[own] / means[rival]);
        row.emplace_back(below);
        if (own != kTuned || rival != kPetals || !std::isfinite(below)) continue;
        least = std::min(least, below);
        most = std::max(most, below);
      }
    }
    // Over the number of servers at the default mix, and over the mix at the default number.
    const bool drawn[] = {mixes[v].fast == kChainFast, mixes[v].servers == kChainServers};
    for (size_t chart = 0; chart < charts.size(); ++chart) {
      if (charts[chart].series.empty()) {
        for (const char* name : kNames) charts[chart].series.emplace_back().name = name;
        charts[chart].series[0].strong = true;
      }
      if (!drawn[chart]) continue;
      for (size_t way = 0; way < kWays; ++way) {
        const Estimate mean = response[way].Mean(v);
        if (mean.samples == 0) continue;
        AddPoint(charts[chart].series[way],
                 chart == 0 ? static_cast<double>(mixes[v].servers) : mixes[v].fast, mean);
      }
    }
  }
  charts[0].title = absl::StrFormat("Mean response over servers, share of fast ones %g", kChainFast);
  charts[0].x = {"servers", ""};
  charts[1].title =
      absl::StrFormat("Mean response over the share of fast servers, %d servers", kChainServers);
  charts[1].x = {"share fast", ""};
  for (report::Chart& chart : charts) chart.y = {"mean response", "s", true};
  Findings findings;
  findings.text = {
      "Whole systems on the same pools and jobs: composed chains (GBP-CR, GCA, JFFC) against our readings of "
      "PETALS' "
      "and BPRR's placement and routing.",
      absl::StrFormat("The tuned composition's mean response is %.0f to %.0f %% below PETALS' over the mixes "
                      "(below 0: above).",
                      least, most)};
  findings.parameters = ChainParameters(context);
  findings.parameters.emplace_back("jobs of a run", absl::StrCat(jobs));
  findings.tables = {std::move(table)};
  findings.charts = std::move(charts);
  return findings;
}

}  // namespace bfio::sim
