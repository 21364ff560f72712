// What one simulation run is asked to do.
//
// Purpose: plain settings, one struct for the command line, the experiments and the tests. Threads: any,
// plain data. Tokens, steps and seconds.
#ifndef BFIO_TOOLS_SIM_RUN_OPTIONS_H_
#define BFIO_TOOLS_SIM_RUN_OPTIONS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/cost/step_time.h"

namespace bfio::sim {

struct SimOptions {
  // --- who decides ---
  std::string policy = "bf_io_auto";
  std::string objective = "square";
  int32_t horizon = 0;
  std::string lookahead = "none";
  // bf_io: weight of a step ahead against the one before it.
  double discount = 1;
  // power_of_d: d.
  int32_t choices = 4;
  // Requests from the front of the pool that a policy sees; 0: 4,096, or `reveal` if that is more.
  int64_t window = 0;
  // Policies that are asked on every decision and not obeyed.
  std::vector<std::string> shadow;
  uint64_t seed = 1;

  // --- how decisions reach the workers ---
  // "pool": requests wait in one pool until a slot is free for them. "instant": each goes to a worker in the
  // step it comes and waits in that worker's own queue, first come first served: what a router without a
  // pool does.
  std::string dispatch = "pool";
  // "lockstep": a plan follows the reports of the step before. "pipelined": of the step before that one.
  std::string plan_mode = "lockstep";
  // Steps by which reports come later still.
  int32_t report_delay = 0;

  // --- what is asked of the group ---
  // "overload": requests are revealed until `reveal` wait. "closed": until `concurrency` wait or run.
  // "arrivals": they come when the trace says, `load` times as fast.
  std::string mode = "overload";
  int64_t reveal = 128;
  int64_t concurrency = 0;
  double load = 1;
  // Steps run before counting starts, and steps counted; 0: no end but `requests`.
  int64_t warmup = 500;
  int64_t steps = 3000;
  // The run ends when so many requests are done; 0: they never run out.
  int64_t requests = 0;
  // Whether the steps after the last request has been admitted count, when the group empties.
  bool count_drain = false;

  // --- the group ---
  // G and B.
  int32_t workers = 16;
  int32_t batch = 72;
  // KV tokens of each worker; 0: no limit. With admission "none" a request reserves what it may come to hold,
  // as in the router.
  int64_t kv_tokens = 0;
  // Who may enter (router/core/admission/admission_text.h). A worker that runs out preempts the youngest.
  std::string admission = "none";
  // What every request says it may generate; longer ones end there. 0: the longest of the workload.
  int64_t max_new_tokens = 0;
  StepCost cost;
  // Added to every step: the barrier itself and whatever lies between steps, seconds.
  double overhead_s = 0;
  // Speed of each worker against an ordinary one's, repeated over the ranks; all 1 when empty.
  std::vector<double> speeds;
  // Whether the policy is told.
  bool tell_speeds = true;
  // Every worker's local time is multiplied by a lognormal factor of mean 1 with this standard deviation of
  // its logarithm, drawn anew in each step.
  double jitter = 0;
  // How loads grow and how many tokens a step makes (drift.h).
  std::string drift = "growth";

  // --- what is foretold ---
  // lookahead=oracle: lengths are told wrong by a factor uniform in [1 - x, 1 + x].
  double prediction_error = 0;
  // lookahead=hint: a request that will end within so many tokens shows it, within a lognormal factor of this
  // standard deviation (hints.h).
  double hint_lead = 8;
  double hint_noise = 0.5;

  // --- what is written besides ---
  // Where every counted decision is written as an LP file, and the most files; nowhere when empty.
  std::string dump_lp;
  int64_t dump_lp_limit = 1000;
};

// INVALID_ARGUMENT, naming the flag and what it may be.
absl::Status Validate(const SimOptions& options);

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_RUN_OPTIONS_H_
