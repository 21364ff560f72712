// Jobs that are routed one by one over hosted blocks, as PETALS and BPRR do it.
//
// Purpose: the alternatives to composed chains. No cache is reserved: each job is given a chain of servers at
// its arrival, and waits until every server on it has a cache slot for each block it processes there. When
// cache is given back the jobs that wait are looked at by arrival, and each begins that fits: none waits
// behind another that needs a server which is still full. A rule's estimate of the wait at a server counts
// what runs there and what waits there, one after the other. Deterministic. Times in seconds. Threads: one at
// a time.
#ifndef BFIO_CHAINS_SIM_ROUTED_JOBS_H_
#define BFIO_CHAINS_SIM_ROUTED_JOBS_H_

#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "chains/core/composition.h"
#include "chains/core/server_pool.h"
#include "chains/sim/chain_queue.h"

namespace bfio::sim {

struct RoutedSystem {
  absl::Span<const core::ChainServer> servers;
  core::ChainService service;
  core::BlockRanges placement;
};

struct RoutingRule {
  enum class Kind {
    // Least time for one token by what a client measures; a server that seems full costs `penalty` more.
    kPetals,
    // BPRR's WS-RR: least time for the whole job, with the wait for cache at each server.
    kWaitAware,
  };
  Kind kind = Kind::kPetals;
  // kPetals. By server: what a hop adds to a token's time; tokens of a mean job.
  std::vector<double> hop_per_token;
  double output_tokens = 1;
  double penalty = 10;
  // Seconds of a job's service on a chain of servers; empty: its size times the chain's mean time.
  std::function<double(size_t job, const core::ServerChain& chain)> time = {};
  // Added to every job's service.
  double start_delay = 0.07;
};

// All jobs, by arrival. FAILED_PRECONDITION when no chain of servers covers all blocks with memory for a job.
// REQUIRES: jobs by arrival; kPetals: as many hops as servers.
absl::StatusOr<std::vector<ServedJob>> ServeByRoutes(const RoutedSystem& system, const RoutingRule& rule,
                                                     absl::Span<const ChainJob> jobs);

}  // namespace bfio::sim

#endif  // BFIO_CHAINS_SIM_ROUTED_JOBS_H_
