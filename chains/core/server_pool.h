// What chains are composed of: servers with memory and speed, and a service of equal blocks.
//
// Purpose: the model of "Serving Chain-structured Jobs with Large Memory Footprints", section 2.1, as plain
// data that placement, composition, bounds and planner share. A model of L blocks (layers) is too large for
// one server; a server hosts a range of consecutive blocks, and a job passes through a chain of servers that
// together process every block once, in order. On each server it holds one cache slot per block it is
// processed by there, as long as it is in service.
//
// Units: memory in GB, times in seconds for a job of mean size, rates in jobs per second; any others that fit
// together do as well. Blocks count from 0 (the paper counts from 1). Threads: plain values.
#ifndef BFIO_CHAINS_CORE_SERVER_POOL_H_
#define BFIO_CHAINS_CORE_SERVER_POOL_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/base/block_range.h"

namespace bfio::core {

struct ChainServer {
  std::string name;
  // M_j
  double memory = 0;
  // tau^c_j: what every job that visits the server spends on the way, all tokens together.
  double communication = 0;
  // tau^p_j: what each block takes a job there, all tokens together.
  double compute = 0;
};

struct ChainService {
  // L
  int32_t blocks = 0;
  // s_m: memory of a block's weights. s_c: cache of one job in one block.
  double block_size = 0;
  double cache_size = 0;
};

// By server, as many as the pool has.
using BlockRanges = std::vector<BlockRange>;

// Most blocks a service may have, and servers a pool; far beyond what is served, small enough for tables.
inline constexpr int32_t kMostBlocks = 4096;
inline constexpr size_t kMostServers = 1024;
// Most cache slots of a server.
inline constexpr int64_t kMostSlots = int64_t{1} << 20;

// How many whole `unit`s fit into `amount`, with 1e-9 of a unit forgiven (0.3 holds three of 0.1); 0 where
// none do, at most kMostSlots. REQUIRES: unit > 0.
int64_t WholeUnits(double amount, double unit);

// Cache slots that a server has left beside the blocks it hosts.
int64_t CacheSlots(const ChainServer& server, const ChainService& service, const BlockRange& range);

// A server's times, in seconds: each at most this, their sum at least the other.
inline constexpr double kLongestTime = 1e9, kShortestTime = 1e-9;

// INVALID_ARGUMENT names the server and field: sizes that are not finite and positive, times out of bounds, a
// cache so small that a server has more than kMostSlots.
absl::Status CheckPool(absl::Span<const ChainServer> servers, const ChainService& service);

}  // namespace bfio::core

#endif  // BFIO_CHAINS_CORE_SERVER_POOL_H_
