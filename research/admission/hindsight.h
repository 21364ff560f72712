// The best schedule of one worker in hindsight, with every arrival and every length known in advance.
//
// Purpose: the optimum with which "Online Scheduling for LLM Inference with KV Cache Constraints" compares
// its rule, in integer rounds. It is computed by a search that proves optimality for a handful of requests,
// and written as the integer program of the paper's Appendix B.1 (a binary for each request and round that
// may start it) in CPLEX LP format for an external solver. The program's linear relaxation is weak: CBC takes
// minutes for ten requests of thirty rounds. Pure functions; any thread. Tokens and rounds as in
// research/admission/admission_rule.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "research/admission/admission_rule.h"
#include "research/admission/one_worker.h"

namespace bfio::sim {

struct Hindsight {
  // Sum of completion minus arrival.
  int64_t total_latency = 0;
  // By request: the round in which it starts.
  std::vector<int64_t> began;
};

// Empty when `most_steps` placements were tried without a proof of optimality. REQUIRES: `at` are integers,
// every request fits alone.
std::optional<Hindsight> HindsightOptimum(const std::vector<KvArrival>& arrivals,
                                          const AdmissionOptions& options, int64_t most_steps);

// Total latency of the schedule; empty when it starts a request before its arrival or exceeds the memory.
std::optional<int64_t> ScheduleLatency(const std::vector<KvArrival>& arrivals,
                                       const AdmissionOptions& options, const std::vector<int64_t>& began);

// Variables x_i_t; requests end by round `horizon`. REQUIRES: as HindsightOptimum; horizon >= at + output.
std::string HindsightLp(const std::vector<KvArrival>& arrivals, const AdmissionOptions& options,
                        int64_t horizon);

// A round by which all requests end in some optimal schedule, given the total latency of any schedule: a
// request that ended later would alone have a greater latency.
int64_t HindsightHorizon(const std::vector<KvArrival>& arrivals, int64_t total_latency);

}  // namespace bfio::sim
