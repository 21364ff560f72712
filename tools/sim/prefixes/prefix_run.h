// One run of a workload on ranks with one placement rule. Compares placement rules in front of engines whose
// ranks step independently, or meet in a barrier after every step. Requests that arrive in the first fifth of
// the arrival period are not counted; all others are followed to their ends. Messages take no time.
// Deterministic for a seed; all rules get the same sessions. Threads: one. Units: seconds, tokens.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json_fwd.hpp"
#include "tools/sim/prefixes/prefix_workload.h"
#include "tools/sim/rank/engine_run.h"

namespace bfio::sim {

struct PrefixRunOptions {
  // Name of a WorkloadShape, or any name of the trace.
  std::string workload = "none";
  const Trace* trace = nullptr;
  std::string policy = "least_requests";
  int32_t ranks = 8;
  // All ranks' steps take as long as that of the slowest rank.
  bool barrier = false;
  // Arrival rate as a share of capacity_per_s.
  double load = 0.7;
  // Approximate number of requests that arrive.
  int64_t requests = 4'000;
  uint64_t seed = 1;
  // Objective of every request for its first token, in seconds, which only the router's policies know; 0:
  // none.
  double ttft_objective_s = 0;
  EngineOptions engine;
};

struct PrefixRunResult {
  // Requests per second that all ranks complete together without cache hits.
  double capacity_per_s = 0;
  // Of the counted requests.
  RequestTimes times;
  // Requests per second that end during the counted part of the arrival period.
  double throughput_per_s = 0;
  // Share of the counted prompts' tokens that were found in a cache.
  double hit_share = 0;
  // Share of the ranks' time in the counted part in which they compute nothing.
  double idle_share = 0;
  // Share of the tokens that the router expected in a rank's cache that were there; 1 without expectations.
  double found_share = 1;
  // Number of requests waiting in the router and the engines, sampled at each arrival.
  double queue_mean = 0;
  int64_t queue_max = 0;
  int64_t preemptions = 0;
};

// A rule of another router (direct_dispatchers.cc), whose ranks fill the token budget. Null: no such rule.
std::unique_ptr<EngineDispatcher> MakeDirectDispatcher(const std::string& rule, int64_t token_budget,
                                                       ServeGroup* group,
                                                       const std::vector<ServeRequest>* requests);

// INVALID_ARGUMENT: an unknown workload or policy.
absl::StatusOr<PrefixRunResult> RunPrefixes(const PrefixRunOptions& options);
nlohmann::ordered_json PrefixRunJson(const PrefixRunOptions& options, const PrefixRunResult& result);

}  // namespace bfio::sim
