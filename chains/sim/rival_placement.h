// How PETALS and BPRR place blocks, as the paper on server chains describes its benchmarks.
//
// Purpose: placements to compare GBP-CR with. Both are our reading of the rules as summarised there and in
// its simulator, not of those systems' own code; what had to be chosen is said at each. Pure. Threads: any,
// no state.
#ifndef BFIO_CHAINS_SIM_RIVAL_PLACEMENT_H_
#define BFIO_CHAINS_SIM_RIVAL_PLACEMENT_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "chains/core/server_pool.h"

namespace bfio::sim {

// What a server announces to a PETALS swarm, in requests per second.
struct PetalsThroughput {
  double forward = 0;  // of one block
  double network = 0;
  // Blocks that it hosts at most, whatever its memory; 0: no bound.
  int32_t most_blocks = 0;
};

struct PetalsOptions {
  // Memory of a server that it keeps for other things, and of a block with its cache (attention cache for one
  // session of full length).
  double kept_memory = 0;
  double block_memory = 0;
  // By server.
  std::vector<PetalsThroughput> throughput;
};

// PETALS: servers join in `order`; each takes as many blocks as fit, at most L, and begins where the
// throughput announced by those before it is smallest in sum over its window (the first of equals). It
// announces min(forward / ((1 + m) / 2), network) for each of its m blocks.
// REQUIRES: CheckPool is OK, as many throughputs as servers, `order` a permutation.
core::BlockRanges PetalsPlacement(absl::Span<const core::ChainServer> servers,
                                  const core::ChainService& service, const PetalsOptions& options,
                                  absl::Span<const int32_t> order);

// BPRR's conservative greedy placement (CG-BP): R sessions are reserved in every block that a server hosts, R
// being what a Poisson demand asks at once (mean lambda T plus one deviation) and what memory allows. T is
// the service time of a job through average servers that host as much as they can (our choice).
// Servers go by time per block: first each to the window with an under-served block where most time can be
// saved, then, when all blocks have R, to the window whose capacities in ascending order are smallest.
// REQUIRES: CheckPool is OK, demand rate > 0.
struct BprrPlacement {
  int64_t sessions = 0;  // R, at least 1
  core::BlockRanges ranges;
};
BprrPlacement PlaceByBprr(absl::Span<const core::ChainServer> servers, const core::ChainService& service,
                          double demand_rate);

}  // namespace bfio::sim

#endif  // BFIO_CHAINS_SIM_RIVAL_PLACEMENT_H_
