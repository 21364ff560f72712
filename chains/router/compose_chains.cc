#include "chains/router/compose_chains.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "chains/core/placement.h"

namespace bfio::router {
namespace {

core::ChainServer ServerOf(const PoolServer& from) {
  // core::WholeUnits tolerates a billionth of a unit, but a server does not tolerate a missing byte.
  return {from.name, static_cast<double>(from.memory - from.memory / 1'000'000'000), from.times.communication,
          from.times.compute};
}

// GCA on the remaining cache, with at most max_slots requests for a chain. What a chain with so many leaves
// is for chains with other servers: a second one with the same servers would only evade the limit. At most
// one chain for each server, as in GCA, where each chain uses up a server's cache.
std::vector<core::ServerChain> Compose(absl::Span<const PoolServer> pool,
                                       absl::Span<const core::ChainServer> servers,
                                       const core::ChainService& service, const core::BlockRanges& placement,
                                       int64_t max_slots, absl::Span<const StandingChain> standing) {
  std::vector<std::vector<int32_t>> full;
  for (const StandingChain& chain : standing) {
    if (chain.slots >= max_slots) full.push_back(chain.servers);
  }
  std::vector<int64_t> left = core::AllCacheSlots(servers, service, placement);
  for (size_t j = 0; j < pool.size(); ++j) left[j] = std::max<int64_t>(0, left[j] - pool[j].slots_used);
  std::vector<core::ServerChain> chains;
  while (chains.size() < pool.size()) {
    auto chain = core::FastestOtherChain(servers, service, placement, left, full);
    if (!chain.has_value()) break;
    chain->capacity = max_slots;
    for (const core::ChainHop& hop : chain->hops) {
      chain->capacity = std::min(chain->capacity, left[hop.server] / hop.range.count);
    }
    for (const core::ChainHop& hop : chain->hops) left[hop.server] -= chain->capacity * hop.range.count;
    if (chain->capacity == max_slots) full.push_back(core::ServersOf(*chain));
    chains.push_back(*std::move(chain));
  }
  return chains;
}

// The response with all chains that serve the demand; larger is worse.
struct Response {
  // Lower bound of the mean response time; infinite if the chains do not carry the demand.
  double bound = std::numeric_limits<double>::infinity();
  double rate = 0;

  friend bool operator<(const Response& a, const Response& b) {
    return std::isinf(a.bound) && std::isinf(b.bound) ? a.rate > b.rate : a.bound < b.bound;
  }
};

Response ResponseOf(absl::Span<const core::ServerChain> chains, absl::Span<const StandingChain> standing,
                    double demand) {
  std::vector<core::ChainRate> all = core::Rates(chains);
  for (const StandingChain& chain : standing) {
    if (chain.rate > 0) all.push_back({chain.rate, chain.slots});
  }
  Response response;
  response.rate = core::TotalRate(all);
  if (response.rate > demand) response.bound = core::OccupancyBounds(all, demand).lower / demand;
  return response;
}

}  // namespace

absl::StatusOr<ChainPlan> PlanChains(absl::Span<const PoolServer> pool, const BlockSizes& sizes,
                                     int64_t max_slots, double demand,
                                     absl::Span<const StandingChain> standing) {
  const core::ChainService service = {sizes.blocks, static_cast<double>(sizes.block),
                                      static_cast<double>(sizes.request)};
  std::vector<core::ChainServer> servers, free;
  std::vector<size_t> free_places;
  for (const PoolServer& server : pool) {
    if (!server.hosts.has_value()) {
      free_places.push_back(servers.size());
      free.push_back(ServerOf(server));
    }
    servers.push_back(ServerOf(server));
  }
  if (absl::Status status = core::CheckPool(servers, service); !status.ok()) return status;
  ChainPlan best;
  Response least;
  // Every small c; larger ones in steps of a sixteenth.
  for (int64_t c = max_slots; c >= 1; c -= std::max<int64_t>(1, c / 16)) {
    const core::BlockPlacement placed = core::GreedyPlacement(free, service, c, core::Demand());
    ChainPlan plan;
    plan.placement.resize(pool.size());
    for (size_t j = 0; j < pool.size(); ++j) {
      if (pool[j].hosts.has_value()) plan.placement[j] = *pool[j].hosts;
    }
    for (size_t i = 0; i < free.size(); ++i) plan.placement[free_places[i]] = placed.ranges[i];
    plan.chains = Compose(pool, servers, service, plan.placement, max_slots, standing);
    if (plan.chains.empty()) continue;
    if (demand <= 0) return plan;
    const Response response = ResponseOf(plan.chains, standing, demand);
    if (best.chains.empty() || response < least) {
      best = std::move(plan);
      least = response;
    }
  }
  if (!best.chains.empty()) return best;
  int64_t blocks = 0;
  for (const core::ChainServer& server : free) blocks += core::BlocksWithReserve(server, service, 1);
  return absl::ResourceExhaustedError(absl::StrCat(free.size(), " servers hold ", blocks, " of ",
                                                   sizes.blocks,
                                                   " blocks with memory for one request at a time"));
}

}  // namespace bfio::router
