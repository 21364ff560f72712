// The best schedule of one worker in hindsight: every arrival and every length known beforehand.
//
// Purpose: the optimum that "Online Scheduling for LLM Inference with KV Cache Constraints" measures its rule
// against, in integer rounds: by search, proven, for a handful of requests; and as the integer program of
// its Appendix B.1 (a binary for each request and round that may begin it) in CPLEX LP format, for a solver
// of its own. The program's linear relaxation is weak: CBC takes minutes for ten requests of thirty rounds.
// Pure functions; any thread. Tokens and rounds as in tools/sim/admission/admission_rule.h.
#ifndef BFIO_TOOLS_SIM_ADMISSION_HINDSIGHT_H_
#define BFIO_TOOLS_SIM_ADMISSION_HINDSIGHT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/sim/admission/admission_rule.h"
#include "tools/sim/admission/one_worker.h"

namespace bfio::sim {

struct Hindsight {
  // Sum of completion less arrival.
  int64_t total_latency = 0;
  // By request: the round it begins in.
  std::vector<int64_t> began;
};

// Nothing when `most_steps` places were tried and the best so far is not proven. REQUIRES: `at` integers,
// every request alone fits.
std::optional<Hindsight> HindsightOptimum(const std::vector<KvArrival>& arrivals,
                                          const AdmissionOptions& options, int64_t most_steps);

// Total latency of the schedule; nothing when it begins a request before it arrives or exceeds the memory.
std::optional<int64_t> ScheduleLatency(const std::vector<KvArrival>& arrivals,
                                       const AdmissionOptions& options, const std::vector<int64_t>& began);

// Variables x_i_t; requests end by round `horizon`. REQUIRES: as HindsightOptimum; horizon >= at + output.
std::string HindsightLp(const std::vector<KvArrival>& arrivals, const AdmissionOptions& options,
                        int64_t horizon);

// A round by which every request can have ended in some optimal schedule, given the total latency of any
// schedule: a request that ends later than that costs more than all of it.
int64_t HindsightHorizon(const std::vector<KvArrival>& arrivals, int64_t total_latency);

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_ADMISSION_HINDSIGHT_H_
