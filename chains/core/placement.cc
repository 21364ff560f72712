#include "chains/core/placement.h"

#include <algorithm>
#include <numeric>

namespace bfio::core {

int32_t BlocksWithReserve(const ChainServer& server, const ChainService& service, int64_t c) {
  const double with_cache = service.block_size + service.cache_size * static_cast<double>(c);
  return static_cast<int32_t>(std::min<int64_t>(WholeUnits(server.memory, with_cache), service.blocks));
}

BlockPlacement PlaceInOrder(absl::Span<const ChainServer> servers, const ChainService& service,
                            int64_t reserved, const Demand& demand, absl::Span<const int32_t> order) {
  BlockPlacement placement;
  placement.reserved = reserved;
  placement.ranges.resize(servers.size());
  const double needed = demand.needed() / static_cast<double>(reserved);
  DisjointChain chain;
  int32_t covered = 0;
  for (const int32_t j : order) {
    const int32_t count = BlocksWithReserve(servers[j], service, reserved);
    if (count == 0) continue;
    // The last server of a chain also hosts as much as it can: the overlap serves other chains.
    placement.ranges[j] = {std::min(covered, service.blocks - count), count};
    chain.servers.push_back(j);
    chain.time += servers[j].communication + servers[j].compute * count;
    covered = std::min(covered + count, service.blocks);
    if (covered < service.blocks) continue;
    placement.rate_per_slot += 1 / chain.time;
    placement.chains.push_back(std::move(chain));
    chain = {};
    covered = 0;
    if (!demand.use_all && demand.rate > 0 && placement.rate_per_slot >= needed) break;
  }
  placement.meets_demand = !placement.chains.empty() && placement.rate_per_slot >= needed;
  return placement;
}

BlockPlacement GreedyPlacement(absl::Span<const ChainServer> servers, const ChainService& service,
                               int64_t reserved, const Demand& demand) {
  std::vector<int32_t> order(servers.size());
  std::iota(order.begin(), order.end(), 0);
  std::vector<double> per_block(servers.size(), 0);
  for (size_t j = 0; j < servers.size(); ++j) {
    const int32_t count = BlocksWithReserve(servers[j], service, reserved);
    if (count > 0) per_block[j] = servers[j].communication / count + servers[j].compute;
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return per_block[a] < per_block[b]; });
  return PlaceInOrder(servers, service, reserved, demand, order);
}

}  // namespace bfio::core
