// chain-cache: Figure 4 of "Serving Chain-structured Jobs with Large Memory Footprints".
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "chains/sim/cache_program.h"
#include "tools/sim/experiment/chain_study.h"
#include "tools/sim/experiment/experiments.h"

namespace bfio::sim {
namespace {

constexpr int kShares = 9;
// What the search for the integer program's optimum may look at; these pools need far fewer.
constexpr int64_t kNodes = 5'000'000;

enum Way : size_t { kDisjoint, kGreedy, kProgram, kBound, kWays };
constexpr const char* kNames[kWays] = {"disjoint chains, c each", "GCA", "integer program", "lower bound"};

// Places that GBP-CR's own chains need, c at a time, fastest first; NaN where all of them give less.
double Disjoint(const core::BlockPlacement& placement, double needed) {
  std::vector<core::ServerChain> chains;
  for (const core::DisjointChain& chain : placement.chains)
    chains.push_back({{}, chain.time, placement.reserved});
  double rate = 0, places = 0;
  for (const core::ServerChain& chain : chains) {
    if (rate >= needed) break;
    rate += chain.rate() * static_cast<double>(chain.capacity);
    places += static_cast<double>(chain.capacity);
  }
  return rate >= needed ? places : std::nan("");
}

}  // namespace

absl::StatusOr<Findings> ChainCache(const ExperimentContext& context) {
  const absl::StatusOr<RttMatrix> rtts = StudyRtts(context, kChainServers);
  if (!rtts.ok()) return rtts.status();
  std::vector<std::string> names;
  for (int share = 1; share <= kShares; ++share) names.push_back(absl::StrCat(10 * share, " % of the rate"));
  std::vector<ByVariantAndSeed> places(kWays, ByVariantAndSeed(kShares, context.seeds));
  ByVariantAndSeed unproven(kShares, context.seeds);
  const absl::Status status =
      ForVariantsAndSeeds(context, names, [&](size_t v, uint64_t seed, const Runner::GoOn&) {
        const WideAreaPool pool = DrawPool(*rtts, kChainServers, kChainFast, seed);
        const core::ChainPlan plan = core::PlanWithReserve(pool.servers, BloomService(), kChainReserve, {});
        const double needed = 0.1 * static_cast<double>(v + 1) * plan.rate;
        places[kDisjoint].at(v, seed) = Disjoint(plan.placement, needed);
        if (const auto greedy = JobServersNeeded(plan.chains, needed))
          places[kGreedy].at(v, seed) = static_cast<double>(*greedy);
        const CacheProgram program = {
            plan.chains, core::AllCacheSlots(pool.servers, BloomService(), plan.placement.ranges), needed};
        const auto solved = SolveCacheProgram(program, kNodes);
        if (solved.has_value()) places[kProgram].at(v, seed) = static_cast<double>(solved->jobs);
        unproven.at(v, seed) = solved.has_value() && solved->optimal ? 0 : 1;
        places[kBound].at(v, seed) = std::ceil(needed * plan.chains[0].time - 1e-9);
        return absl::OkStatus();
      });
  if (!status.ok()) return status;

  report::Table table;
  table.title = "Jobs at once that are needed for a rate";
  table.note =
      "The rate is a share of what all of GCA's chains give. Empty: the disjoint chains do not give it. "
      "Equal: "
      "seeds in which GCA needs as many as the integer program over its chains.";
  table.columns = {{"rate", "%"}};
  for (const char* name : kNames) table.columns.push_back({name, ""});
  table.columns.insert(table.columns.end(), {{"equal", "seeds"}, {"not proven", "seeds"}});
  report::Chart chart;
  chart.title = "Jobs at once over the needed rate";
  chart.x = {"rate, of all chains", "%"};
  chart.y = {"jobs at once", ""};
  chart.y.min = 0;
  for (const char* name : kNames) chart.series.emplace_back().name = name;
  chart.series[kGreedy].strong = true;
  int64_t equal_all = 0;
  for (size_t v = 0; v < kShares; ++v) {
    const double share = 10 * static_cast<double>(v + 1);
    auto& row = table.rows.emplace_back(std::vector<report::Cell>{share});
    for (size_t way = 0; way < kWays; ++way) {
      const Estimate mean = places[way].Mean(v);
      row.emplace_back(mean.mean);
      if (mean.samples > 0) AddPoint(chart.series[way], share, mean);
    }
    int64_t equal = 0, open = 0;
    for (int64_t seed = 1; seed <= context.seeds; ++seed) {
      equal += places[kGreedy].at(v, seed) == places[kProgram].at(v, seed);
      open += unproven.at(v, seed) > 0;
    }
    equal_all += equal;
    row.insert(row.end(), {equal, open});
  }
  Findings findings;
  findings.text = {
      "Cache allocation for a given placement (GBP-CR, c = 7, all servers): how many jobs must be served at "
      "once "
      "for a rate, by GCA's chains filled fastest first, by GBP-CR's disjoint chains alone, and at the "
      "optimum "
      "over GCA's chains. The bound takes every job to be on the fastest chain.",
      absl::StrCat("GCA is as good as the integer program in ", equal_all, " of ", kShares * context.seeds,
                   " cases.")};
  findings.parameters = ChainParameters(context);
  findings.tables = {std::move(table)};
  findings.charts = {std::move(chart)};
  return findings;
}

}  // namespace bfio::sim
