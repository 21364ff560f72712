// What the experiments on server chains (chain-placement to chain-trace) share.
//
// Purpose: the setting of "Serving Chain-structured Jobs with Large Memory Footprints", section 4.1:
// BLOOM-176B over servers drawn from a wide-area network, 20 servers of which a fifth is fast, 0.2 jobs a
// second, target load 0.7, c = 7. Times in seconds. Threads: any, no state.
#ifndef BFIO_TOOLS_SIM_EXPERIMENT_CHAIN_STUDY_H_
#define BFIO_TOOLS_SIM_EXPERIMENT_CHAIN_STUDY_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "chains/core/tuning.h"
#include "chains/sim/chain_queue.h"
#include "chains/sim/wide_area.h"
#include "tools/sim/experiment/experiment.h"

namespace bfio::sim {

inline constexpr int64_t kChainServers = 20;
inline constexpr double kChainFast = 0.2, kChainDemand = 0.2, kChainTargetLoad = 0.7;
inline constexpr int64_t kChainReserve = 7;

// The matrix of --rtt, or 320 nodes at made-up places. INVALID_ARGUMENT when it has too few for so many
// servers and an orchestrator.
absl::StatusOr<RttMatrix> StudyRtts(const ExperimentContext& context, int64_t most_servers);

// Calls `task(variant, seed)` for each of the variants and the seeds of the context, on the runner's threads.
using ChainTask = std::function<absl::Status(size_t variant, uint64_t seed, const Runner::GoOn& go_on)>;
absl::Status ForVariantsAndSeeds(const ExperimentContext& context, const std::vector<std::string>& variants,
                                 const ChainTask& task);

// Means over jobs, the first tenth left out.
struct MeanTimes {
  double response = 0, wait = 0, service = 0;
};
MeanTimes MeansOf(absl::Span<const ServedJob> jobs);

// Poisson jobs on chains under a rule. Infinity where the chains do not carry the rate.
// REQUIRES: a known rule.
MeanTimes SimulateChains(const std::vector<core::ServerChain>& chains, const std::string& rule, double rate,
                         int64_t jobs, uint64_t seed, const Runner::GoOn& go_on);

// One value per variant and seed, NaN where there is none.
class ByVariantAndSeed {
 public:
  ByVariantAndSeed(size_t variants, int64_t seeds);
  double& at(size_t variant, uint64_t seed) { return values_[variant][seed - 1]; }
  const std::vector<double>& of(size_t variant) const { return values_[variant]; }
  // Over the seeds that have a value.
  Estimate Mean(size_t variant) const;

 private:
  std::vector<std::vector<double>> values_;
};

std::vector<std::pair<std::string, std::string>> ChainParameters(const ExperimentContext& context);

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_EXPERIMENT_CHAIN_STUDY_H_
