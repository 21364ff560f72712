// Decides which blocks each server hosts: GBP-CR. Greedy Block Placement with Cache Reservation (Algorithm 1
// of "Serving Chain-structured Jobs with Large Memory Footprints"). Every block is placed together with cache
// memory for c jobs. Servers are taken in order of their time per hosted block, and each run of servers that
// covers all blocks is a chain. Gives the fewest chains when all memories are equal (Theorem 3.4), a
// heuristic otherwise. O(J log J). Pure functions. Threads: any, no state.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "chains/core/server_pool.h"

namespace bfio::core {

// m_j(c): the number of blocks, at most L, that fit with cache memory for c jobs each.
int32_t BlocksWithReserve(const ChainServer& server, const ChainService& service, int64_t c);

// Servers that cover all blocks and are in no other such chain.
struct DisjointChain {
  // In the order of their blocks.
  std::vector<int32_t> servers;
  // The sum of t_j(c): upper bound of a job's mean time.
  double time = 0;
};

struct BlockPlacement {
  int64_t reserved = 0;  // c
  BlockRanges ranges;
  // The K(c) disjoint chains.
  std::vector<DisjointChain> chains;
  // Sum over the chains of 1 / time: a lower bound of the rate, per reserved slot (Lemma 3.2).
  double rate_per_slot = 0;
  // rate_per_slot * c >= demand / target_load.
  bool meets_demand = false;
};

struct Demand {
  // lambda, in jobs per second; 0: place blocks on every server.
  double rate = 0;
  // rho-bar: the largest share of the composed rate that the demand should use.
  double target_load = 0.7;
  // Gives blocks to every server that can hold one, even if fewer servers would carry the demand: GBP-CR
  // without its stopping rule (an extension of the paper). More servers are used, and there are shorter
  // chains to choose from.
  bool use_all = false;

  // The required composed rate.
  double needed() const { return rate / target_load; }
};

// GBP-CR for c = `reserved`. Stops placing when the chains so far carry the demand (not with use_all).
// Servers that are not needed, or that cannot hold a block with c jobs, get no blocks. Servers of a last,
// incomplete chain keep their blocks: composition may use them. REQUIRES: CheckPool is OK, reserved >= 1, 0 <
// target_load <= 1, rate >= 0.
BlockPlacement GreedyPlacement(absl::Span<const ChainServer> servers, const ChainService& service,
                               int64_t reserved, const Demand& demand);

// The same placement with servers in a given order, as a baseline for GBP-CR. `order` contains each server at
// most once; servers that cannot hold a block are skipped.
BlockPlacement PlaceInOrder(absl::Span<const ChainServer> servers, const ChainService& service,
                            int64_t reserved, const Demand& demand, absl::Span<const int32_t> order);

}  // namespace bfio::core
