// The block placements of PETALS and BPRR, as the paper on chains describes its baselines.
//
// Purpose: placements to compare GBP-CR with. Both implement the rules as summarised in the paper and in its
// simulator, not those systems' own code; choices that the description leaves open are stated at each. Pure
// functions. Threads: any, no state.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "chains/core/server_pool.h"

namespace bfio::sim {

// The throughput that a server announces to a PETALS swarm, in requests per second.
struct PetalsThroughput {
  double forward = 0;  // of one block
  double network = 0;
  // Upper bound of the blocks that it hosts, whatever its memory; 0: no bound.
  int32_t most_blocks = 0;
};

struct PetalsOptions {
  // Memory that a server keeps for other purposes; and memory of a block with its cache (attention cache for
  // one session of full length).
  double kept_memory = 0;
  double block_memory = 0;
  // By server.
  std::vector<PetalsThroughput> throughput;
};

// PETALS: servers join in `order`. Each takes as many blocks as fit, at most L, and begins where the sum of
// the throughput announced by earlier servers over its window is smallest (the first of equals). It announces
// min(forward / ((1 + m) / 2), network) for each of its m blocks. REQUIRES: CheckPool is OK, as many
// throughputs as servers, `order` is a permutation.
core::BlockRanges PetalsPlacement(absl::Span<const core::ChainServer> servers,
                                  const core::ChainService& service, const PetalsOptions& options,
                                  absl::Span<const int32_t> order);

// BPRR's conservative greedy placement (CG-BP). R sessions are reserved in every block that a server hosts,
// where R is the number that a Poisson demand needs concurrently (mean lambda T plus one standard deviation),
// as far as memory allows. T is the service time of a job through average servers that host as much as they
// can (a choice made here). Servers are taken by time per block. Each goes to the window with an under-served
// block where most time can be saved; once all blocks have R, to the window whose capacities in ascending
// order are smallest. REQUIRES: CheckPool is OK, demand rate > 0.
struct BprrPlacement {
  int64_t sessions = 0;  // R, at least 1
  core::BlockRanges ranges;
};
BprrPlacement PlaceByBprr(absl::Span<const core::ChainServer> servers, const core::ChainService& service,
                          double demand_rate);

}  // namespace bfio::sim
