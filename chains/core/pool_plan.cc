#include "chains/core/pool_plan.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace bfio::core {
namespace {

// The share of the largest rate for which chains are composed.
constexpr double kLoad = 0.9;

ChainServer ServerOf(const PoolServer& from) {
  // WholeUnits may round up by a billionth of a unit, but a plan must not exceed the memory by a byte.
  return {from.name, static_cast<double>(from.memory - from.memory / 1'000'000'000), from.times.communication,
          from.times.compute};
}

ChainService ServiceOf(const BlockSizes& sizes) {
  return {sizes.blocks, static_cast<double>(sizes.block), static_cast<double>(sizes.request)};
}

// GCA on the remaining cache, with at most max_slots requests for a chain. Cache that a chain at this limit
// leaves is for chains with other servers: a second chain of the same servers would evade the limit. At most
// one chain for each server, as in GCA, where each chain uses up a server's cache.
std::vector<ServerChain> OverlappingChains(absl::Span<const PoolServer> pool,
                                           absl::Span<const ChainServer> servers, const ChainService& service,
                                           const BlockRanges& placement, int64_t max_slots,
                                           absl::Span<const ExistingChain> standing) {
  std::vector<std::vector<int32_t>> full;
  for (const ExistingChain& chain : standing) {
    if (chain.slots >= max_slots) full.push_back(chain.servers);
  }
  std::vector<int64_t> left = AllCacheSlots(servers, service, placement);
  for (size_t j = 0; j < pool.size(); ++j) left[j] = std::max<int64_t>(0, left[j] - pool[j].slots_used);
  std::vector<ServerChain> chains;
  while (chains.size() < pool.size()) {
    auto chain = FastestOtherChain(servers, service, placement, left, full);
    if (!chain.has_value()) break;
    chain->capacity = max_slots;
    for (const ChainHop& hop : chain->hops) {
      chain->capacity = std::min(chain->capacity, left[hop.server] / hop.range.count);
    }
    for (const ChainHop& hop : chain->hops) left[hop.server] -= chain->capacity * hop.range.count;
    if (chain->capacity == max_slots) full.push_back(ServersOf(*chain));
    chains.push_back(*std::move(chain));
  }
  return chains;
}

// The rates of `chains` and of those of `standing` that have one.
std::vector<ChainRate> AllRates(absl::Span<const ServerChain> chains,
                                absl::Span<const ExistingChain> standing) {
  std::vector<ChainRate> all = Rates(chains);
  for (const ExistingChain& chain : standing) {
    if (chain.rate > 0) all.push_back({chain.rate, chain.slots});
  }
  return all;
}

}  // namespace

absl::StatusOr<PoolPlan> PlanChains(absl::Span<const PoolServer> pool, const BlockSizes& sizes,
                                    int64_t max_slots, bool measured,
                                    absl::Span<const ExistingChain> standing) {
  const ChainService service = ServiceOf(sizes);
  std::vector<ChainServer> servers, free;
  std::vector<size_t> free_places;
  for (const PoolServer& server : pool) {
    if (!server.hosts.has_value()) {
      free_places.push_back(servers.size());
      free.push_back(ServerOf(server));
    }
    servers.push_back(ServerOf(server));
  }
  if (absl::Status status = CheckPool(servers, service); !status.ok()) return status;
  std::vector<PoolPlan> plans;
  double most = 0;
  // Every small c; larger ones in steps of a sixteenth.
  for (int64_t c = max_slots; c >= 1; c -= std::max<int64_t>(1, c / 16)) {
    const BlockPlacement placed = GreedyPlacement(free, service, c, Demand());
    PoolPlan plan;
    plan.placement.resize(pool.size());
    for (size_t j = 0; j < pool.size(); ++j) {
      if (pool[j].hosts.has_value()) plan.placement[j] = *pool[j].hosts;
    }
    for (size_t i = 0; i < free.size(); ++i) plan.placement[free_places[i]] = placed.ranges[i];
    plan.chains = OverlappingChains(pool, servers, service, plan.placement, max_slots, standing);
    if (plan.chains.empty()) continue;
    if (!measured) return plan;
    most = std::max(most, TotalRate(AllRates(plan.chains, standing)));
    plans.push_back(std::move(plan));
  }
  PoolPlan* best = nullptr;
  double least = 0;
  for (PoolPlan& plan : plans) {
    const std::vector<ChainRate> rates = AllRates(plan.chains, standing);
    if (TotalRate(rates) <= kLoad * most) continue;
    const double jobs = OccupancyBounds(rates, kLoad * most).lower;
    if (best != nullptr && jobs >= least) continue;
    best = &plan;
    least = jobs;
  }
  if (best != nullptr) return std::move(*best);
  int64_t blocks = 0;
  for (const ChainServer& server : free) blocks += BlocksWithReserve(server, service, 1);
  return absl::ResourceExhaustedError(absl::StrCat(free.size(), " servers have memory for ", blocks, " of ",
                                                   sizes.blocks, " blocks with cache for one request"));
}

}  // namespace bfio::core
