#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "chains/plan/output.h"

namespace bfio::plan {
namespace {

// The most rows printed of tables that may be long; JSON contains all of them.
constexpr size_t kMostRows = 40;

std::string Blocks(const BlockRange& range) {
  return absl::StrCat(range.first, "-", range.end() - 1);
}

std::string Cut(size_t rows, const char* of) {
  return rows > kMostRows ? absl::StrCat("... and ", rows - kMostRows, " more ", of, " (--json has all)\n")
                          : "";
}

std::string ChainLines(const Problem& problem, const Plan& plan) {
  std::string text = "chain    time s  jobs  servers (blocks they process, from 0)\n";
  const auto& chains = plan.chosen.chains;
  for (size_t k = 0; k < std::min(chains.size(), kMostRows); ++k) {
    absl::StrAppendFormat(&text, "%5d  %8.4g  %4d ", k + 1, chains[k].time, chains[k].capacity);
    for (const core::ChainHop& hop : chains[k].hops)
      absl::StrAppend(&text, " ", problem.servers[hop.server].name, " (", Blocks(hop.range), ")");
    absl::StrAppend(&text, "\n");
  }
  return absl::StrCat(text, Cut(chains.size(), "chains"));
}

std::string ServerLines(const Problem& problem, const Plan& plan) {
  std::string text = "server                    hosts  memory GB  cache slots  in chains\n";
  std::vector<int64_t> taken(problem.servers.size(), 0);
  for (const core::ServerChain& chain : plan.chosen.chains) {
    for (const core::ChainHop& hop : chain.hops) taken[hop.server] += chain.capacity * hop.range.count;
  }
  size_t rows = 0, unused = 0;
  for (size_t j = 0; j < problem.servers.size(); ++j) {
    const BlockRange& range = plan.chosen.placement.ranges[j];
    unused += range.count == 0;
    if (range.count == 0 || ++rows > kMostRows) continue;
    absl::StrAppendFormat(&text, "%-22s  %7s  %9.4g  %11d  %9d\n", problem.servers[j].name, Blocks(range),
                          problem.servers[j].memory,
                          core::CacheSlots(problem.servers[j], problem.service, range), taken[j]);
  }
  absl::StrAppend(&text, Cut(rows, "servers"));
  if (unused > 0) absl::StrAppend(&text, unused, " servers have no blocks; the demand does not need them\n");
  return text;
}

}  // namespace

std::string PlanText(const Problem& problem, const Plan& plan) {
  double memory = 0;
  for (const core::ChainServer& server : problem.servers) memory += server.memory;
  const core::ChainPlan& chosen = plan.chosen;
  std::string text = absl::StrFormat(
      "%d blocks of %.4g GB, %.4g GB of cache per job in each; %d servers with %.5g GB\n"
      "demand %.4g jobs/s, target load %.4g\n\n"
      "c = %d: %d disjoint chains; composed: %d chains, %d jobs at once, %.4g jobs/s, load %.1f %%\n",
      problem.service.blocks, problem.service.block_size, problem.service.cache_size, problem.servers.size(),
      memory, problem.demand.rate, problem.demand.target_load, plan.c(), chosen.placement.chains.size(),
      chosen.chains.size(), core::TotalCapacity(chosen.chains), chosen.rate,
      100 * problem.demand.rate / chosen.rate);
  if (!plan.meets_target) absl::StrAppend(&text, "the load is above the target load\n");
  absl::StrAppendFormat(&text, "mean response %.4g to %.4g s\n\n", plan.response.lower, plan.response.upper);
  absl::StrAppend(&text, ChainLines(problem, plan), "\n", ServerLines(problem, plan));
  return text;
}

}  // namespace bfio::plan
