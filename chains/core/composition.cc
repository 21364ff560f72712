#include "chains/core/composition.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "chains/core/shortest_chain.h"

namespace bfio::core {
double TotalRate(absl::Span<const ServerChain> chains) {
  double rate = 0;
  for (const ServerChain& chain : chains) rate += chain.rate() * static_cast<double>(chain.capacity);
  return rate;
}

int64_t TotalCapacity(absl::Span<const ServerChain> chains) {
  int64_t capacity = 0;
  for (const ServerChain& chain : chains) capacity += chain.capacity;
  return capacity;
}

std::vector<int64_t> AllCacheSlots(absl::Span<const ChainServer> servers, const ChainService& service,
                                   const BlockRanges& placement) {
  std::vector<int64_t> slots(servers.size());
  for (size_t j = 0; j < servers.size(); ++j) slots[j] = CacheSlots(servers[j], service, placement[j]);
  return slots;
}

std::optional<ServerChain> FastestChain(absl::Span<const ChainServer> servers, const ChainService& service,
                                        const BlockRanges& placement, absl::Span<const int64_t> free_slots) {
  return ShortestChain(service, placement).Find([&](int32_t j, int32_t count) {
    return free_slots[j] < count ? kNoWay : servers[j].communication + servers[j].compute * count;
  });
}

std::vector<ServerChain> ComposeChains(absl::Span<const ChainServer> servers, const ChainService& service,
                                       const BlockRanges& placement) {
  std::vector<int64_t> free_slots = AllCacheSlots(servers, service, placement);
  ShortestChain shortest(service, placement);
  const auto time = [&](int32_t j, int32_t count) {
    return free_slots[j] < count ? kNoWay : servers[j].communication + servers[j].compute * count;
  };
  std::vector<ServerChain> chains;
  while (std::optional<ServerChain> chain = shortest.Find(time)) {
    chain->capacity = kMostSlots;
    for (const ChainHop& hop : chain->hops)
      chain->capacity = std::min(chain->capacity, free_slots[hop.server] / hop.range.count);
    for (const ChainHop& hop : chain->hops) free_slots[hop.server] -= chain->capacity * hop.range.count;
    chains.push_back(*std::move(chain));
  }
  return chains;
}

absl::Status CheckChains(absl::Span<const ChainServer> servers, const ChainService& service,
                         const BlockRanges& placement, absl::Span<const ServerChain> chains) {
  std::vector<int64_t> left = AllCacheSlots(servers, service, placement);
  for (size_t k = 0; k < chains.size(); ++k) {
    int32_t passed = 0;
    for (const ChainHop& hop : chains[k].hops) {
      const bool known = hop.server >= 0 && static_cast<size_t>(hop.server) < servers.size();
      if (!known || hop.range.count < 1 || hop.range.first != passed ||
          hop.range.first < placement[hop.server].first || hop.range.end() > placement[hop.server].end()) {
        return absl::InternalError(
            absl::StrCat("chain ", k, ": server ", hop.server, " cannot go on from block ", passed));
      }
      passed = hop.range.end();
      left[hop.server] -= chains[k].capacity * hop.range.count;
    }
    if (passed != service.blocks)
      return absl::InternalError(absl::StrCat("chain ", k, " ends at block ", passed));
  }
  for (size_t j = 0; j < servers.size(); ++j) {
    if (left[j] < 0) return absl::InternalError(absl::StrCat("server ", j, " lacks ", -left[j], " slots"));
  }
  return absl::OkStatus();
}

}  // namespace bfio::core
