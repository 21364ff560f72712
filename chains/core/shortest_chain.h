// Finds the cheapest chain of a placement, for any cost of a hop.
//
// Purpose: shared by greedy cache allocation and by policies that route every job separately. What follows a
// server depends only on where its blocks end, so the shortest path is a table over block positions and not
// over pairs of servers: O(sum of hosted blocks) per search. The placement must outlive this. Threads: one at
// a time.
#ifndef BFIO_CHAINS_CORE_SHORTEST_CHAIN_H_
#define BFIO_CHAINS_CORE_SHORTEST_CHAIN_H_

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "chains/core/composition.h"
#include "chains/core/server_pool.h"

namespace bfio::core {

// Cost of a hop that is impossible.
inline constexpr double kNoWay = std::numeric_limits<double>::infinity();

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

#endif  // BFIO_CHAINS_CORE_SHORTEST_CHAIN_H_
