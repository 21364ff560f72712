// Composes chains of servers with capacities: GCA. Greedy Cache Allocation (Algorithm 2 of "Serving
// Chain-structured Jobs with Large Memory Footprints"). For a placement, the fastest chain with cache for one
// more job gets as many jobs as fit, and so on until nothing fits. This suffices for a dispatcher that always
// takes the fastest free chain (Theorem 3.5). The result has the fastest chain first; each chain has
// different servers or a different division of the blocks. At most one chain per link of the topology;
// finding a chain is O(sum of hosted blocks). Of equally fast chains the one with the lexicographically
// smallest server numbers comes first. Pure. Threads: any, no state.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "chains/core/server_pool.h"

namespace bfio::core {

// A server's part in a chain: it processes `range`, which is the end of the range that it hosts.
struct ChainHop {
  int32_t server = 0;
  BlockRange range;

  friend bool operator==(const ChainHop& a, const ChainHop& b) {
    return a.server == b.server && a.range == b.range;
  }
};

struct ServerChain {
  std::vector<ChainHop> hops;
  // T_k: service time of a job of mean size, in seconds.
  double time = 0;
  // c_k: the most jobs at the same time.
  int64_t capacity = 0;

  double rate() const { return 1 / time; }  // mu_k: service rate of one job, in jobs per second
};

// nu: jobs per second of all chains when full.
double TotalRate(absl::Span<const ServerChain> chains);
int64_t TotalCapacity(absl::Span<const ServerChain> chains);

// Cache slots of each server when no job runs.
std::vector<int64_t> AllCacheSlots(absl::Span<const ChainServer> servers, const ChainService& service,
                                   const BlockRanges& placement);

// The fastest chain for which every server has at least as many free slots as it would process blocks, with
// capacity 0; nullopt if there is none. REQUIRES: as many ranges and slots as servers; ranges are within the
// service.
std::optional<ServerChain> FastestChain(absl::Span<const ChainServer> servers, const ChainService& service,
                                        const BlockRanges& placement, absl::Span<const int64_t> free_slots);

// As FastestChain, among the chains that do without at least one server of each list in `taken`. Gives up
// when the 64 fastest chains that it looks at are all excluded: one look costs as much as FastestChain.
std::optional<ServerChain> FastestOtherChain(absl::Span<const ChainServer> servers,
                                             const ChainService& service, const BlockRanges& placement,
                                             absl::Span<const int64_t> free_slots,
                                             absl::Span<const std::vector<int32_t>> taken);

// The chain's servers, in order.
std::vector<int32_t> ServersOf(const ServerChain& chain);

// GCA. REQUIRES: as FastestChain.
std::vector<ServerChain> ComposeChains(absl::Span<const ChainServer> servers, const ChainService& service,
                                       const BlockRanges& placement);

// Checks that each chain covers all blocks once, in order, with blocks that its servers host, and that no
// server allocates more slots than it has. INTERNAL names the violation.
absl::Status CheckChains(absl::Span<const ChainServer> servers, const ChainService& service,
                         const BlockRanges& placement, absl::Span<const ServerChain> chains);

// Cost of a hop that is impossible.
inline constexpr double kNoWay = std::numeric_limits<double>::infinity();

// The cheapest chain of a placement, for any cost of a hop. What follows a server depends only on where its
// blocks end, so the shortest path is a table over block positions: O(sum of hosted blocks) per search.
// Borrows the placement, which must outlive it. Threads: one at a time.
class ShortestChain {
 public:
  ShortestChain(const ChainService& service, const BlockRanges& placement)
      : placement_(placement), next_(service.blocks + 1), hosts_(service.blocks) {
    for (size_t j = 0; j < placement.size(); ++j) {
      for (int32_t e = placement[j].first; e < placement[j].end(); ++e)
        hosts_[e].push_back({static_cast<int32_t>(j), placement[j].end()});
    }
  }

  // `cost(server, blocks)`: cost of processing the last `blocks` of the server's blocks, at least 0, or
  // kNoWay. In the result, `time` is the chain's cost and the capacity is 0; nullopt if there is no chain.
  // Ties go to the smaller server number, hop by hop from the first.
  template <class Cost>
  std::optional<ServerChain> Find(const Cost& cost) {
    const auto blocks = static_cast<int32_t>(hosts_.size());
    next_[blocks] = {0, -1};
    for (int32_t e = blocks - 1; e >= 0; --e) {
      Next best;
      for (const Host& host : hosts_[e]) {
        const double rest = next_[host.end].cost;
        if (rest >= best.cost) continue;
        const double way = cost(host.server, host.end - e) + rest;
        if (way < best.cost) best = {way, host.server};
      }
      next_[e] = best;
    }
    if (next_[0].server < 0) return std::nullopt;
    ServerChain chain;
    chain.time = next_[0].cost;
    for (int32_t e = 0; e < blocks;) {
      const int32_t j = next_[e].server, end = placement_[j].end();
      chain.hops.push_back({j, {e, end - e}});
      e = end;
    }
    return chain;
  }

 private:
  // The next hop of a job that has passed a given number of blocks.
  struct Next {
    double cost = kNoWay;  // from here to the end of the chain
    int32_t server = -1;
  };

  struct Host {
    int32_t server = 0;
    int32_t end = 0;  // end of the hosted range
  };

  const BlockRanges& placement_;
  std::vector<Next> next_;
  // By block: the servers that host it, ordered by number.
  std::vector<std::vector<Host>> hosts_;
};

}  // namespace bfio::core
