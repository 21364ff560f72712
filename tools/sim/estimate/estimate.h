// Would bfio help a cluster that runs without it? Simulates the balancer that is there and bfio in front of
// the same engines, with the lengths, rate and step cost that the cluster's metrics show. What the metrics
// leave open becomes a range: each run has other windows, other lengths and other arrivals. Pure. Threads:
// one per estimate. Deterministic for a seed.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "common/cost/group_time.h"
#include "common/workload/trace.h"
#include "nlohmann/json_fwd.hpp"
#include "tools/sim/estimate/cluster_metrics.h"

namespace bfio::sim {

struct EstimateOptions {
  // max_num_seqs and max_num_batched_tokens: vLLM does not report them.
  int64_t slots = 256, budget = 8192;
  // The rule of serve that comes nearest to the present balancer.
  std::string rule = "vllm";
  // Instead of the fitted one; and what it costs all ranks, which is not fitted.
  std::optional<BatchCost> cost;
  GroupTerms terms;
  // Instead of lengths drawn from the histograms.
  std::optional<Trace> trace;
  // Whether ranks wait for each other; empty: as the measurements say.
  std::optional<bool> barrier;
  int32_t runs = 5;
  // Counted in each run, at least.
  int64_t requests = 3000;
  uint64_t seed = 1;
};

// Keys: measured, cost, load (of balanced ranks; with `closed` the requests per slot), model (the present
// balancer, simulated), bfio, change (per quantity: ratio to the present, with the least and the largest of
// all runs), trust ("good"; "bound": prompts cost at least that; "rough": the simulation differs from the
// measurement), and answer ("yes", "no", "worse", "unknown") with the reason, why. FAILED_PRECONDITION when
// the lengths of requests are not reported. `progress` is called before each run, with its number; false ends
// the estimate with CANCELLED.
absl::StatusOr<nlohmann::ordered_json> Estimate(const ClusterMeasurements& measured,
                                                const EstimateOptions& options,
                                                const std::function<bool(int32_t)>& progress);

// A sentence about the load of an estimate with a model, without its full stop.
std::string LoadOf(const nlohmann::ordered_json& estimate);
// The estimate as a page for a browser that needs nothing else.
std::string EstimatePage(const nlohmann::ordered_json& estimate);

}  // namespace bfio::sim
