// Serves jobs with the PETALS-like and BPRR-like baselines of composed chains.
//
// Purpose: the same pool and jobs for each system. Times in seconds. Threads: any, no state.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "research/chains/routed_jobs.h"
#include "research/chains/wide_area.h"

namespace bfio::sim {

struct RivalSetting {
  core::ChainService service;
  core::JobShape job;  // the mean job
  // For PETALS, in GB: memory of a block with the cache that a session takes there.
  double petals_block_memory = 0;
  // Sessions that PETALS' own cache of a block can hold; 0: all remaining memory is cache.
  int64_t petals_sessions = 0;
  // Limits PETALS to PetalsThroughput::most_blocks on each server.
  bool petals_slices = false;
  // Seconds of a job on a chain of servers; empty: its size times the chain's mean time.
  std::function<double(size_t job, const core::ServerChain& chain)> time = {};
};

// Servers join in an order drawn from the seed. FAILED_PRECONDITION if the placement leaves a block without a
// server.
absl::StatusOr<std::vector<ServedJob>> ServeByPetals(const WideAreaPool& pool, const RivalSetting& setting,
                                                     absl::Span<const ChainJob> jobs, uint64_t seed);
absl::StatusOr<std::vector<ServedJob>> ServeByBprr(const WideAreaPool& pool, const RivalSetting& setting,
                                                   double rate, absl::Span<const ChainJob> jobs);

}  // namespace bfio::sim
