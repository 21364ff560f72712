// Jobs served by composed chains, event by event.
//
// Purpose: what a dispatching rule makes of a stream of jobs. An arriving job goes where the rule says; a job
// of size r takes r / mu on a chain; when one ends, the head of the chain's own queue begins, or else the
// head of the central one. Events at equal times: ends before arrivals, ends in the order they began.
// Deterministic for jobs and rule. Times in seconds. Threads: one at a time.
#ifndef BFIO_CHAINS_SIM_CHAIN_QUEUE_H_
#define BFIO_CHAINS_SIM_CHAIN_QUEUE_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/types/span.h"
#include "chains/core/dispatcher.h"
#include "chains/core/occupancy.h"

namespace bfio::sim {

struct ChainJob {
  double arrival = 0;
  double size = 1;  // r, mean 1
};

struct ServedJob {
  double arrival = 0, wait = 0, service = 0;
  int32_t chain = 0;  // or any mark of where it was served

  double response() const { return wait + service; }
};

// Poisson arrivals and exponential sizes of mean 1. REQUIRES: rate > 0.
std::vector<ChainJob> PoissonJobs(double rate, int64_t count, uint64_t seed);

// Seconds of a job's service on a chain, where they are not its size by the chain's rate.
using JobOnChain = std::function<double(size_t job, int32_t chain)>;

// All jobs, by arrival, served to their ends.
// REQUIRES: chains fastest first with capacities above 0, jobs by arrival.
std::vector<ServedJob> ServeOnChains(absl::Span<const core::ChainRate> chains,
                                     core::ChainDispatcher& dispatcher, absl::Span<const ChainJob> jobs,
                                     const JobOnChain& time = {});

}  // namespace bfio::sim

#endif  // BFIO_CHAINS_SIM_CHAIN_QUEUE_H_
