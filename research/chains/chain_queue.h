// Simulates jobs on composed chains, event by event.
//
// Purpose: evaluates a dispatching policy on a stream of jobs. The policy assigns each arriving job. A job of
// size r takes r / mu on a chain. When one ends, the head of the chain's own queue starts, or else the head
// of the central queue. Of events at the same time, ends come before arrivals, and ends in the order in which
// the jobs started. Deterministic for jobs and policy. Times in seconds. Threads: one at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/types/span.h"
#include "chains/core/occupancy.h"
#include "research/chains/dispatcher.h"

namespace bfio::sim {

struct ChainJob {
  double arrival = 0;
  double size = 1;  // r, mean 1
};

struct ServedJob {
  double arrival = 0, wait = 0, service = 0;
  int32_t chain = 0;  // or any identifier of where it was served

  double response() const { return wait + service; }
};

// Poisson arrivals and exponential sizes of mean 1. REQUIRES: rate > 0.
std::vector<ChainJob> PoissonJobs(double rate, int64_t count, uint64_t seed);

// Seconds of a job's service on a chain, if not its size divided by the chain's rate.
using JobOnChain = std::function<double(size_t job, int32_t chain)>;

// All jobs in the order of arrival, served to their ends. REQUIRES: chains are fastest first with capacities
// above 0; jobs are ordered by arrival.
std::vector<ServedJob> ServeOnChains(absl::Span<const core::ChainRate> chains,
                                     core::ChainDispatcher& dispatcher, absl::Span<const ChainJob> jobs,
                                     const JobOnChain& time = {});

}  // namespace bfio::sim
