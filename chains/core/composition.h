// Chains of servers with capacities: GCA.
//
// Purpose: Greedy Cache Allocation (Algorithm 2 of "Serving Chain-structured Jobs with Large Memory
// Footprints"). For a placement, the fastest chain with cache for one more job gets as many jobs as fit, and
// so on until nothing fits. That is enough for a dispatcher that always takes the fastest free chain (Theorem
// 3.5). Chains come out fastest first, each with different servers or a different split of the blocks.
// At most one chain per link of the topology; a chain is found in O(sum of hosted blocks).
// Ties go to the chain whose server numbers are lexicographically smallest. Pure. Threads: any, no state.
#ifndef BFIO_CHAINS_CORE_COMPOSITION_H_
#define BFIO_CHAINS_CORE_COMPOSITION_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "chains/core/server_pool.h"

namespace bfio::core {

// A server's part in a chain: it processes `range`, the end of what it hosts.
struct ChainHop {
  int32_t server = 0;
  BlockRange range;

  friend bool operator==(const ChainHop& a, const ChainHop& b) {
    return a.server == b.server && a.range == b.range;
  }
};

struct ServerChain {
  std::vector<ChainHop> hops;
  // T_k: service time of a job of mean size.
  double time = 0;
  // c_k: jobs at once.
  int64_t capacity = 0;

  double rate() const { return 1 / time; }  // mu_k, of one job
};

// nu: jobs per second of all chains when full.
double TotalRate(absl::Span<const ServerChain> chains);
int64_t TotalCapacity(absl::Span<const ServerChain> chains);

// Cache slots by server, before any job.
std::vector<int64_t> AllCacheSlots(absl::Span<const ChainServer> servers, const ChainService& service,
                                   const BlockRanges& placement);

// The fastest chain for which every server has as many free slots as it would process blocks, with capacity
// 0; nullopt where there is none. REQUIRES: as many ranges and slots as servers, ranges within the service.
std::optional<ServerChain> FastestChain(absl::Span<const ChainServer> servers, const ChainService& service,
                                        const BlockRanges& placement, absl::Span<const int64_t> free_slots);

// GCA. REQUIRES: as FastestChain.
std::vector<ServerChain> ComposeChains(absl::Span<const ChainServer> servers, const ChainService& service,
                                       const BlockRanges& placement);

// Whether chains keep to the model: each covers all blocks once in order with blocks its servers host, and no
// server gives away more slots than it has. INTERNAL names what is broken.
absl::Status CheckChains(absl::Span<const ChainServer> servers, const ChainService& service,
                         const BlockRanges& placement, absl::Span<const ServerChain> chains);

}  // namespace bfio::core

#endif  // BFIO_CHAINS_CORE_COMPOSITION_H_
