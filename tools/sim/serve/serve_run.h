// One run of a rule on a workload, and its results.
//
// Purpose: requests come by a Poisson process at a share of the group's capacity, or one whenever one ends,
// in the order and with the lengths of a trace; a rule plans every step, `lag` steps ahead; counting begins
// after a warm-up and ends when the last counted request has ended, while further requests arrive.
// Deterministic for a seed. Threads: runs in different threads share nothing.
#ifndef BFIO_TOOLS_SIM_SERVE_SERVE_RUN_H_
#define BFIO_TOOLS_SIM_SERVE_SERVE_RUN_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "common/cost/batch_time.h"
#include "common/workload/trace.h"
#include "nlohmann/json_fwd.hpp"
#include "tools/sim/serve/serve_workload.h"

namespace bfio::sim {

// The cost of a step by which the rule plans and ranks fill their steps: the true one, or one that is fitted
// to the steps as in workers, with or without the attention of prompts.
enum class KnownCost { kTrue, kFitted, kFittedWithoutK1 };

struct ServeOptions {
  std::string rule = "bf_io";
  int32_t workers = 8;
  int64_t slots = 256;
  // Tokens of a rank's step; rules without a budget do not use it.
  int64_t budget = 2048;
  // Share of ServeCapacity::requests_per_s that arrives; `closed`: share of all slots that requests in the
  // system would fill, a new one coming whenever one ends.
  double load = 0.7;
  bool closed = false;
  BatchCost cost;
  KnownCost known_cost = KnownCost::kTrue;
  // A plan that is made from the reports of step k is for step k + lag: 2 is a router's pipelined mode; with
  // 1 or 0 the group waits for its plan.
  int32_t lag = 0;
  // Every request's objective for the time to its first token, seconds; 0: none.
  double ttft_objective_s = 0;
  double jitter = 0;
  uint64_t seed = 1;
};

struct Latencies {
  double mean = 0, p50 = 0, p99 = 0;
};

struct ServeResult {
  ServeCapacity capacity;
  double arrivals_per_s = 0;
  // Seconds before counting began, and of the counted arrivals.
  double warmup_s = 0, counted_s = 0;
  int64_t requests = 0, steps = 0;
  double step_s_mean = 0;
  Latencies ttft_s, tpot_s, itl_s, e2e_s;
  // Share of the requests whose first token came within the objective; none: there is no objective.
  std::optional<double> ttft_met;
  // Share of all ranks' time spent waiting for the slowest; with the steps recomputed without prompts, over
  // the same time; and the difference.
  double idle_fraction = 0, idle_decode_fraction = 0, idle_prefill_fraction = 0;
  double throughput_tokens_per_s = 0;
};

// INVALID_ARGUMENT for a bad option or an empty trace; RESOURCE_EXHAUSTED when the counted requests had not
// ended after three times the time that they should need: the rule does not keep up.
absl::StatusOr<ServeResult> RunServe(const ServeOptions& options, const Trace& trace);

nlohmann::ordered_json ServeJson(const ServeOptions& options, const std::string& workload,
                                 const ServeResult& result);

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_SERVE_SERVE_RUN_H_
