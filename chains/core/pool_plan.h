// Composes chains of the free servers, in addition to the existing chains. GBP-CR places blocks on the free
// servers, and GCA composes chains over them and over the remaining cache of the other servers (chains/core).
// c is the number of requests for which placement reserves memory. Without measured times it is
// the largest, up to the requested one, for which there is a chain. Otherwise it is the one with the smallest
// lower bound of the mean response time at 90 % of the largest rate of any c, where the existing chains also
// serve: chains for a lower demand would not carry this one, and respond hardly faster at theirs. A server
// that is in a chain keeps its blocks: moving them would end that chain. Threads: pure functions.
//
// Servers that have not measured count as equally fast and equally distant: GBP-CR then takes the large ones
// first, and GCA prefers chains with few servers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "chains/core/composition.h"
#include "chains/core/occupancy.h"
#include "chains/core/server_pool.h"
#include "common/base/block_range.h"

namespace bfio::core {

// For a mean request, over all its tokens, in seconds (as in ChainServer).
struct ServerTimes {
  double compute = 1;
  double communication = 1;
};

struct PoolServer {
  std::string name;
  // Memory in bytes for blocks and caches.
  int64_t memory = 0;
  // For a server that is in a chain: the blocks it hosts, and its used cache slots (one request in one
  // block).
  std::optional<BlockRange> hosts;
  int64_t slots_used = 0;
  ServerTimes times;
};

// Sizes in bytes.
struct BlockSizes {
  int32_t blocks = 0;
  int64_t block = 0;
  // KV cache of one request in one block.
  int64_t request = 0;
};

// A chain that exists already.
struct ExistingChain {
  // Requests per second of one slot; 0: not known.
  double rate = 0;
  int64_t slots = 0;
  // Indices of its servers in the pool, at least one; -1: a server that is not in the pool.
  std::vector<int32_t> servers;
};

struct PoolPlan {
  // By server of the argument; servers in no chain may also have blocks.
  BlockRanges placement;
  // At least one chain. Capacities are concurrent requests, at most the requested number.
  std::vector<ServerChain> chains;
};

// RESOURCE_EXHAUSTED, with the missing blocks, if there is no chain even for one request at a time;
// INVALID_ARGUMENT for sizes out of range. `measured`: `times` are in seconds. A new chain has other servers
// than every existing one with max_slots slots.
absl::StatusOr<PoolPlan> PlanChains(absl::Span<const PoolServer> servers, const BlockSizes& sizes,
                                    int64_t max_slots, bool measured = false,
                                    absl::Span<const ExistingChain> standing = {});

}  // namespace bfio::core
