// Simulates jobs that are routed one by one over hosted blocks, as in PETALS and BPRR.
//
// Purpose: the alternatives to composed chains. No cache is reserved: each job gets a chain of servers on
// arrival, and waits until every server of it has a cache slot for each block that it processes there. When
// cache is freed, waiting jobs are checked in the order of arrival, and each that fits starts: none waits
// behind a job that needs a full server. A policy's estimate of the wait at a server counts the jobs that run
// and wait there, one after the other. Deterministic. Times in seconds. Threads: one at a time.
#pragma once

#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "chains/core/composition.h"
#include "chains/core/server_pool.h"
#include "research/chains/chain_queue.h"

namespace bfio::sim {

struct RoutedSystem {
  absl::Span<const core::ChainServer> servers;
  core::ChainService service;
  core::BlockRanges placement;
};

struct RoutingRule {
  enum class Kind {
    // The smallest time per token as measured by a client; a server that seems full costs `penalty` more.
    kPetals,
    // BPRR's WS-RR: the smallest time for the whole job, including the wait for cache at each server.
    kWaitAware,
  };
  Kind kind = Kind::kPetals;
  // For kPetals. By server: the time that a hop adds to a token; and the tokens of a mean job.
  std::vector<double> hop_per_token;
  double output_tokens = 1;
  double penalty = 10;
  // Seconds of a job's service on a chain of servers; empty: its size times the chain's mean time.
  std::function<double(size_t job, const core::ServerChain& chain)> time = {};
  // Added to every job's service, in seconds.
  double start_delay = 0.07;
};

// All jobs in the order of arrival. FAILED_PRECONDITION if no chain of servers covers all blocks with memory
// for a job. REQUIRES: jobs are ordered by arrival; for kPetals, as many hops as servers.
absl::StatusOr<std::vector<ServedJob>> ServeByRoutes(const RoutedSystem& system, const RoutingRule& rule,
                                                     absl::Span<const ChainJob> jobs);

}  // namespace bfio::sim
