// Chains out of the servers that are free, beside those that are in chains already.
//
// Purpose: GBP-CR places blocks on the free servers, GCA composes chains over them and over what cache the
// others have left (chains/core). c, the requests that placement reserves memory for, is the largest up to
// what is asked for at which there is a chain; where times have been measured and requests come, the one
// with the least lower bound of their mean response, served by these chains and those that stand; where no c
// carries them, the one of the largest rate. A server that is in a chain keeps its blocks: moving
// them would break that chain. Threads: pure.
//
// Servers that have not measured all count as equally fast and near: GBP-CR then takes the large ones first,
// and GCA the chains with the fewest servers.
#ifndef BFIO_CHAINS_ROUTER_COMPOSE_CHAINS_H_
#define BFIO_CHAINS_ROUTER_COMPOSE_CHAINS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "chains/core/composition.h"
#include "chains/core/occupancy.h"
#include "chains/core/server_pool.h"
#include "chains/router/server_times.h"

namespace bfio::router {

struct PoolServer {
  std::string name;
  // Bytes for blocks and caches.
  int64_t memory = 0;
  // Of a server that is in a chain: what it hosts, and its cache slots (one request in one block) in use.
  std::optional<BlockRange> hosts;
  int64_t slots_used = 0;
  ServerTimes times;
};

// Bytes.
struct BlockSizes {
  int32_t blocks = 0;
  int64_t block = 0;
  // KV of one request in one block.
  int64_t request = 0;
};

struct ChainPlan {
  // By server asked about; those in no chain may have blocks too.
  core::BlockRanges placement;
  // At least one. Capacities are requests at a time, at most what was asked for.
  std::vector<core::ServerChain> chains;
};

// RESOURCE_EXHAUSTED, with the blocks that are missing, when even one request at a time leaves no chain;
// INVALID_ARGUMENT for sizes that are out of range. `demand`: requests per second, where `times` are seconds;
// else 0. `standing`: the chains that serve it already, as far as their times are known.
absl::StatusOr<ChainPlan> PlanChains(absl::Span<const PoolServer> servers, const BlockSizes& sizes,
                                     int64_t max_slots, double demand = 0,
                                     absl::Span<const core::ChainRate> standing = {});

}  // namespace bfio::router

#endif  // BFIO_CHAINS_ROUTER_COMPOSE_CHAINS_H_
