// One run: a workload, ranks, a rule of placement.
//
// Purpose: compares rules of placement in front of engines whose ranks step by themselves, or meet in a
// barrier after every step. Requests that arrive in the
// first fifth of the arrivals' time are not counted; all others are followed to their ends. Messages take no
// time. Deterministic for a seed; all rules get the same sessions. Threads: one. Units: seconds, tokens.
#ifndef BFIO_TOOLS_SIM_PREFIXES_PREFIX_RUN_H_
#define BFIO_TOOLS_SIM_PREFIXES_PREFIX_RUN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json_fwd.hpp"
#include "tools/sim/prefixes/engine_model.h"

namespace bfio::sim {

struct PrefixRunOptions {
  std::string workload = "none";
  std::string policy = "least_requests";
  int32_t ranks = 8;
  // A step takes as long as that of the slowest rank.
  bool barrier = false;
  // Share of the requests that full ranks compute without hits in their caches.
  double load = 0.7;
  // That arrive, about.
  int64_t requests = 4'000;
  uint64_t seed = 1;
  EngineModelOptions engine;
};

struct RunTimes {
  double mean = 0, p50 = 0, p99 = 0;
};

struct PrefixRunResult {
  // Requests per second of all ranks without hits.
  double capacity_per_s = 0;
  // Counted requests.
  int64_t requests = 0;
  // From arrival.
  RunTimes ttft_s, tpot_s, e2e_s;
  // Requests that ended in the counted time of arrivals, per second of it.
  double throughput_per_s = 0;
  // Of the counted prompts' tokens.
  double hit_share = 0;
  // Share of the tokens that the router expected in a rank's cache which were there; 1 without expectations.
  double found_share = 1;
  // Requests that wait, in the router and in the engines, at arrivals.
  double queue_mean = 0;
  int64_t queue_max = 0;
  int64_t preemptions = 0;
};

// INVALID_ARGUMENT: an unknown workload or policy.
absl::StatusOr<PrefixRunResult> RunPrefixes(const PrefixRunOptions& options);
nlohmann::ordered_json PrefixRunJson(const PrefixRunOptions& options, const PrefixRunResult& result);

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_PREFIXES_PREFIX_RUN_H_
