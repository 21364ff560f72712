#include "chains/core/composition.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"

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

std::vector<int32_t> ServersOf(const ServerChain& chain) {
  std::vector<int32_t> servers;
  for (const ChainHop& hop : chain.hops) servers.push_back(hop.server);
  return servers;
}

std::optional<ServerChain> FastestOtherChain(absl::Span<const ChainServer> servers,
                                             const ChainService& service, const BlockRanges& placement,
                                             absl::Span<const int64_t> free_slots,
                                             absl::Span<const std::vector<int32_t>> taken) {
  constexpr int kMostRounds = 64;
  ShortestChain shortest(service, placement);
  std::vector<char> left_out(servers.size());
  // By its time, the fastest chain without these servers. Leaving out more servers makes no chain faster, so
  // the first one that is not excluded is the fastest.
  std::map<std::pair<double, std::vector<int32_t>>, ServerChain> found;
  std::set<std::vector<int32_t>> tried;
  const auto search = [&](const std::vector<int32_t>& without) {
    if (!tried.insert(without).second) return;
    for (const int32_t j : without) left_out[j] = 1;
    auto chain = shortest.Find([&](int32_t j, int32_t count) {
      return left_out[j] || free_slots[j] < count ? kNoWay
                                                  : servers[j].communication + servers[j].compute * count;
    });
    for (const int32_t j : without) left_out[j] = 0;
    if (chain.has_value()) found.insert({{chain->time, without}, *std::move(chain)});
  };
  search({});
  for (int round = 0; round < kMostRounds && !found.empty(); ++round) {
    const auto [key, chain] = *found.begin();
    const std::vector<int32_t> chosen = ServersOf(chain);
    const auto excluding = std::find_if(taken.begin(), taken.end(), [&](const std::vector<int32_t>& one) {
      return std::all_of(one.begin(), one.end(), [&](int32_t j) {
        return std::find(chosen.begin(), chosen.end(), j) != chosen.end();
      });
    });
    if (excluding == taken.end()) return chain;
    found.erase(found.begin());
    for (const int32_t j : *excluding) {
      std::vector<int32_t> without = key.second;
      without.insert(std::lower_bound(without.begin(), without.end(), j), j);
      search(without);
    }
  }
  return std::nullopt;
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
