// The settings of one simulation run. Plain settings, one struct for the command line, the experiments and
// the tests; AddRunOptions (shared_options.cc) describes those that are not described here. Threads: any,
// plain data. Units: tokens, steps and seconds.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/cost/step_time.h"

namespace bfio::sim {

struct SimOptions {
  // --- policy ---
  std::string policy = "bf_io_auto";
  std::string objective = "square";
  int32_t horizon = 0;
  std::string lookahead = "survival";
  double discount = 1;
  double wait_ratio = 1.15;
  int64_t window = 0;
  uint64_t seed = 1;

  // --- how decisions reach the workers ---
  // "pool": requests wait in one pool until a slot is free for them. "instant": each request is sent to a
  // worker in the step in which it arrives and waits in that worker's queue, first come first served, as with
  // a router without a pool.
  std::string dispatch = "pool";
  // "lockstep": a plan follows from the reports of the previous step; "pipelined": from those of the step
  // before that.
  std::string plan_mode = "lockstep";
  int32_t report_delay = 0;

  // --- load on the group ---
  std::string mode = "overload";
  int64_t reveal = 128;
  int64_t concurrency = 0;
  double load = 1;
  int64_t warmup = 500;
  // 0: the run ends only by `requests`.
  int64_t steps = 3000;
  // Number of priority classes, and of tenants. Each class or tenant after the first gets one request in
  // five; classes of higher priority are the rarer ones.
  int32_t classes = 1;
  int32_t tenants = 1;
  // The run ends when this many requests are done; 0: requests never run out.
  int64_t requests = 0;
  bool count_drain = false;

  // --- the group ---
  int32_t workers = 16;
  int32_t batch = 72;
  // With admission "none" a request reserves the maximum that it may hold, as in the router.
  int64_t kv_tokens = 0;
  // The admission rule (router/core/admission/admission_text.h). A worker that runs out of KV memory preempts
  // its youngest request.
  std::string admission = "none";
  int64_t max_new_tokens = 0;
  StepCost cost;
  double overhead_s = 0;
  // All 1 when empty.
  std::vector<double> speeds;
  bool tell_speeds = true;
  double jitter = 0;
  // How loads grow and how many tokens a step generates (drift.h).
  std::string drift = "growth";

  // --- predictions ---
  double prediction_error = 0;
  // HintModel.
  double hint_lead = 8;
  double hint_noise = 0.5;
};

// INVALID_ARGUMENT, naming the flag and its valid values.
absl::Status Validate(const SimOptions& options);

}  // namespace bfio::sim
