// Which blocks each server hosts: GBP-CR.
//
// Purpose: Greedy Block Placement with Cache Reservation (Algorithm 1 of "Serving Chain-structured Jobs with
// Large Memory Footprints"). Every block is placed together with memory for c jobs; servers are taken in
// order of their time per hosted block, and each run of servers that covers all blocks is a chain. Fewest
// chains when all memories are equal (Theorem 3.4), a heuristic otherwise. O(J log J). Pure. Threads: any, no
// state.
#ifndef BFIO_CHAINS_CORE_PLACEMENT_H_
#define BFIO_CHAINS_CORE_PLACEMENT_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "chains/core/server_pool.h"

namespace bfio::core {

// m_j(c): blocks that fit with memory for c jobs in each, at most L.
int32_t BlocksWithReserve(const ChainServer& server, const ChainService& service, int64_t c);

// Servers that cover all blocks and share none with another group.
struct DisjointChain {
  // In the order of their blocks.
  std::vector<int32_t> servers;
  // sum t_j(c): no job takes longer on average.
  double time = 0;
};

struct BlockPlacement {
  int64_t reserved = 0;  // c
  BlockRanges ranges;
  // K(c) of them.
  std::vector<DisjointChain> chains;
  // sum over chains of 1 / time: a lower bound of the rate, per reserved slot (Lemma 3.2).
  double rate_per_slot = 0;
  // rate_per_slot * c >= demand / target_load.
  bool meets_demand = false;
};

struct Demand {
  // lambda, jobs per second; 0: place on every server.
  double rate = 0;
  // rho-bar: the share of the composed rate that the demand may take.
  double target_load = 0.7;
  // Every server that holds a block gets its blocks, also when fewer would carry the demand: GBP-CR without
  // its stop rule (ours). More servers, and shorter chains to choose from.
  bool use_all = false;

  // What the composed rate must be.
  double needed() const { return rate / target_load; }
};

// GBP-CR for c = `reserved`. Stops placing when the chains so far carry the demand (not with use_all);
// servers that are not needed for it, or that hold no block with c jobs, get none. Servers of a last chain
// that did not become whole keep their blocks: composition may use them. REQUIRES: CheckPool is OK, reserved
// >= 1, 0 < target_load <= 1, rate >= 0.
BlockPlacement GreedyPlacement(absl::Span<const ChainServer> servers, const ChainService& service,
                               int64_t reserved, const Demand& demand);

// The same placement of servers in a given order: `order` has servers at most once, those that hold no block
// are passed over. What GBP-CR is measured against.
BlockPlacement PlaceInOrder(absl::Span<const ChainServer> servers, const ChainService& service,
                            int64_t reserved, const Demand& demand, absl::Span<const int32_t> order);

}  // namespace bfio::core

#endif  // BFIO_CHAINS_CORE_PLACEMENT_H_
