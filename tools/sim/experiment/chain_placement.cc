// chain-placement: Figure 3 of "Serving Chain-structured Jobs with Large Memory Footprints".
#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/rng.h"
#include "tools/sim/experiment/chain_study.h"
#include "tools/sim/experiment/experiments.h"

namespace bfio::sim {
namespace {

constexpr int64_t kOrders = 100;
constexpr double kMixes[] = {0, kChainFast};
constexpr double kDemands[] = {0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7};

struct Case {
  double fast = 0, demand = 0;
};

// c K(c) of one pool; NaN where the demand is not met.
struct Surrogates {
  double greedy = std::nan("");
  std::vector<double> random;  // ascending, of the orders that meet the demand
};

double Surrogate(const core::BlockPlacement& placement) {
  return placement.meets_demand
             ? static_cast<double>(placement.reserved) * static_cast<double>(placement.chains.size())
             : std::nan("");
}

Surrogates Place(const WideAreaPool& pool, const Case& of, uint64_t seed) {
  const core::Demand demand = {of.demand, kChainTargetLoad};
  Surrogates found;
  found.greedy = Surrogate(core::GreedyPlacement(pool.servers, BloomService(), kChainReserve, demand));
  Rng rng = Rng(seed).Fork(3);
  std::vector<int32_t> order(pool.servers.size());
  std::iota(order.begin(), order.end(), 0);
  for (int64_t i = 0; i < kOrders; ++i) {
    for (size_t j = order.size(); j > 1; --j) std::swap(order[j - 1], order[rng.Below(j)]);
    const double value =
        Surrogate(core::PlaceInOrder(pool.servers, BloomService(), kChainReserve, demand, order));
    if (!std::isnan(value)) found.random.push_back(value);
  }
  std::sort(found.random.begin(), found.random.end());
  return found;
}

}  // namespace

absl::StatusOr<Findings> ChainPlacement(const ExperimentContext& context) {
  const absl::StatusOr<RttMatrix> rtts = StudyRtts(context, kChainServers);
  if (!rtts.ok()) return rtts.status();
  std::vector<Case> cases;
  std::vector<std::string> names;
  for (const double fast : kMixes) {
    for (const double demand : kDemands) {
      cases.push_back({fast, demand});
      names.push_back(absl::StrCat("share fast ", fast, ", ", demand, " jobs/s"));
    }
  }
  std::vector<std::vector<Surrogates>> found(cases.size(), std::vector<Surrogates>(context.seeds));
  const absl::Status status =
      ForVariantsAndSeeds(context, names, [&](size_t v, uint64_t seed, const Runner::GoOn&) {
        found[v][seed - 1] = Place(DrawPool(*rtts, kChainServers, cases[v].fast, seed), cases[v], seed);
        return absl::OkStatus();
      });
  if (!status.ok()) return status;

  Findings findings;
  report::Table table;
  table.title = "c K(c) of GBP-CR and of 100 random orders of the servers, c = 7";
  table.note =
      "Means over the seeds where GBP-CR meets the demand. Above the least: seeds in which some random order "
      "needs fewer chains than GBP-CR.";
  table.columns = {{"share fast", ""},    {"demand", "jobs/s"},      {"GBP-CR", ""},
                   {"random, least", ""}, {"random, median", ""},    {"random, most", ""},
                   {"random fails", "%"}, {"GBP-CR fails", "seeds"}, {"above the least", "seeds"}};
  std::vector<report::Chart> charts(std::size(kMixes));
  int64_t above = 0;
  for (size_t v = 0; v < cases.size(); ++v) {
    std::vector<double> greedy, least, median, most;
    int64_t fails = 0, worse = 0;
    size_t met = 0;
    for (const Surrogates& one : found[v]) {
      met += one.random.size();
      fails += std::isnan(one.greedy);
      if (std::isnan(one.greedy)) {
        worse += !one.random.empty();
        continue;
      }
      greedy.push_back(one.greedy);
      if (one.random.empty()) continue;
      worse += one.random.front() < one.greedy;
      least.push_back(one.random.front());
      median.push_back(one.random[one.random.size() / 2]);
      most.push_back(one.random.back());
    }
    above += worse;
    const auto mean = [](const std::vector<double>& x) {
      return x.empty() ? std::nan("") : EstimateMean(x).mean;
    };
    const double all = static_cast<double>(kOrders * context.seeds);
    table.rows.push_back({cases[v].fast, cases[v].demand, mean(greedy), mean(least), mean(median), mean(most),
                          100 * (1 - static_cast<double>(met) / all), fails, worse});
    report::Chart& chart = charts[v / std::size(kDemands)];
    if (chart.series.empty()) {
      chart.title = absl::StrCat("c K(c) over demand, share of fast servers ", cases[v].fast);
      chart.x = {"demand", "jobs/s"};
      chart.y = {"c K(c)", "jobs"};
      chart.y.min = 0;
      for (const char* name : {"GBP-CR", "random, least", "random, median", "random, most"})
        chart.series.emplace_back().name = name;
      chart.series[0].strong = true;
    }
    const double values[] = {mean(greedy), mean(least), mean(median), mean(most)};
    for (size_t s = 0; s < std::size(values); ++s) {
      chart.series[s].x.push_back(cases[v].demand);
      chart.series[s].y.push_back(values[s]);
    }
  }
  findings.text = {
      "How many reserved job places GBP-CR's disjoint chains need for a demand, against servers taken in "
      "random "
      "order and grouped the same way. The fewer the better.",
      absl::StrCat("A random order beat GBP-CR in ", above, " of ", cases.size() * context.seeds,
                   " pools and demands.")};
  findings.parameters = ChainParameters(context);
  findings.tables = {std::move(table)};
  findings.charts = std::move(charts);
  return findings;
}

}  // namespace bfio::sim
