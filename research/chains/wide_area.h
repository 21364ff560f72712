// Pools spread over a continent, as in the simulations of "Serving Chain-structured Jobs with Large Memory
// Footprints" (section 4.1.1): BLOOM-176B on two kinds of GPU slices, with round-trip times of a wide-area
// network.
//
// Purpose: shared by the chain experiments. The paper takes round-trip times from RIPE Atlas, which is not
// included; EuropeanRtts generates similar ones, ParseRtts reads any. Deterministic for the seed. Times in
// seconds unless named otherwise. Threads: any, no state.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "chains/core/server_pool.h"
#include "research/chains/rival_placement.h"

namespace bfio::sim {

// [i][j]: round-trip time between i and j in milliseconds.
using RttMatrix = std::vector<std::vector<double>>;

// 0.3 m_i + 0.3 m_j + 0.01 ms per km between places near large European cities, where m_i is lognormal with
// median 20 ms: the formula of the authors' simulator with generated places and medians.
RttMatrix EuropeanRtts(int64_t nodes, uint64_t seed);

// Parses a square matrix as CSV, in ms: one line per node, no header. INVALID_ARGUMENT names line and column.
absl::StatusOr<RttMatrix> ParseRtts(absl::string_view csv);

// The time of a job on a server, from the hardware's data (section 4.1.1 of the paper): prefill is
// compute-bound, decode reads the weights once per token, and every token visits every server of a chain.

struct ServerSpeed {
  double tflops = 0;
  double memory_gb_per_s = 0;
};

struct BlockCost {
  double gflop_per_token = 0;
  double size_gb = 0;
};

// tau^p, s: overhead, the prompt's computation, and one pass over the weights for each token but the first.
inline double ComputeSeconds(const core::JobShape& job, const ServerSpeed& speed, const BlockCost& block,
                             double overhead_s) {
  return overhead_s + 1e-3 * block.gflop_per_token / speed.tflops * job.input_tokens +
         block.size_gb / speed.memory_gb_per_s * (job.output_tokens - 1);
}

// tau^c, s: for each token, a round trip and the overhead of handling a message.
inline double CommunicationSeconds(const core::JobShape& job, double round_trip_s, double overhead_s) {
  return job.output_tokens * (round_trip_s + overhead_s);
}

// One of the two kinds of GPU: memory in GB, speed, and the throughput that it announces to PETALS.
struct GpuKind {
  double memory = 0;
  ServerSpeed speed;
  PetalsThroughput throughput;
};
// The slow kind is a slice of a GPU, on which PETALS hosts at most four blocks.
inline constexpr int32_t kPetalsSliceBlocks = 4;
inline constexpr GpuKind kFastGpu = {40, {120, 1020}, {20829, 3020}};
inline constexpr GpuKind kSlowGpu = {20, {80, 510}, {5515, 6276, kPetalsSliceBlocks}};

// BLOOM-176B in NF4: 70 blocks; cache for 2,048 tokens; the mean lengths of the Azure conversation trace as
// the paper rounds them.
inline constexpr int32_t kBloomBlocks = 70;
inline constexpr double kBloomBlockGb = 1.32, kBloomCacheGb = 0.11, kBloomGflop = 5;
inline constexpr core::JobShape kBloomJob = {2000, 20};
inline constexpr double kBlockOverhead = 1e-3, kMessageOverhead = 18e-3;

core::ChainService BloomService();

struct WideAreaPool {
  std::vector<core::ChainServer> servers;
  // For the baselines.
  std::vector<PetalsThroughput> throughput;
  std::vector<double> round_trip;  // to the orchestrator, in seconds
};

// `count` servers and an orchestrator at nodes drawn from the matrix; a fraction `fast` of them, rounded, has
// the fast GPU. REQUIRES: 1 <= count < rtts.size(), 0 <= fast <= 1.
WideAreaPool DrawPool(const RttMatrix& rtts, int64_t count, double fast, uint64_t seed);

}  // namespace bfio::sim
