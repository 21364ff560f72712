// The input for composing chains: servers with memory and speed, and a service of equal blocks. The model of
// "Serving Chain-structured Jobs with Large Memory Footprints", section 2.1, as plain data that placement,
// composition, bounds and planner share. A model of L blocks (layers) is too large for one server. A server
// hosts a range of consecutive blocks, and a job passes through a chain of servers that together process
// every block once, in order. On each server it holds one cache slot per block that it is processed by there,
// as long as it is in service.
//
// Units: memory in GB, times in seconds for a job of mean size, rates in jobs per second; other consistent
// units also work. Blocks count from 0 (the paper counts from 1). Threads: plain data.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/base/block_range.h"

namespace bfio::core {

// The mean job.
struct JobShape {
  double input_tokens = 0;
  double output_tokens = 0;  // at least 1
};

struct ChainServer {
  std::string name;
  // M_j
  double memory = 0;
  // tau^c_j: communication time of a job that visits the server, over all its tokens.
  double communication = 0;
  // tau^p_j: computation time of a job in one block, over all its tokens.
  double compute = 0;
};

struct ChainService {
  // L
  int32_t blocks = 0;
  // s_m: memory of a block's weights. s_c: cache of one job in one block.
  double block_size = 0;
  double cache_size = 0;
};

// By server; as many as the pool has servers.
using BlockRanges = std::vector<BlockRange>;

// Upper bounds of a service's blocks and of a pool's servers; far above practical sizes, small enough for
// tables.
inline constexpr int32_t kMostBlocks = 4096;
inline constexpr size_t kMostServers = 1024;
// Upper bound of a server's cache slots.
inline constexpr int64_t kMostSlots = int64_t{1} << 20;

// How many whole `unit`s fit in `amount`, with a tolerance of 1e-9 of a unit (0.3 contains three of 0.1); 0
// if none does, at most kMostSlots. REQUIRES: unit > 0.
int64_t WholeUnits(double amount, double unit);

// Cache slots that a server has beside the blocks that it hosts.
int64_t CacheSlots(const ChainServer& server, const ChainService& service, const BlockRange& range);

// Bounds of a server's times, in seconds: each is at most the first, their sum at least the second.
inline constexpr double kLongestTime = 1e9, kShortestTime = 1e-9;

// INVALID_ARGUMENT, naming the server and field: sizes that are not finite and positive, times out of bounds,
// or a cache so small that a server has more than kMostSlots.
absl::Status CheckPool(absl::Span<const ChainServer> servers, const ChainService& service);

// Decides which blocks each server hosts: GBP-CR. Greedy Block Placement with Cache Reservation (Algorithm 1
// of "Serving Chain-structured Jobs with Large Memory Footprints"). Every block is placed together with cache
// memory for c jobs. Servers are taken in order of their time per hosted block, and each run of servers that
// covers all blocks is a chain. Gives the fewest chains when all memories are equal (Theorem 3.4), a
// heuristic otherwise. O(J log J). Pure functions. Threads: any, no state.

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
