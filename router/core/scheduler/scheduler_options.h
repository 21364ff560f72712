// Settings of a cluster: its pool and all its groups. Threads: any, plain data.
#pragma once

#include <cstdint>

#include "router/core/admission/kv_admission.h"
#include "router/core/admission/wait_admission.h"
#include "router/core/scheduler/events.h"
#include "router/core/scheduler/stages.h"

namespace bfio::core {

struct SchedulerOptions {
  // --- of the pool ---

  // Bound of the waiting pool, in requests.
  int64_t max_waiting = 4096;
  // Which requests are delayed until enough similar ones wait (router/core/admission/wait_admission.h).
  // Groups without a barrier take them as soon as they decide.
  WaitAdmissionOptions wait;

  // --- of every group ---

  // The number of requests from the front of the pool that a policy gets, if that is more than the free
  // slots; bounds the decision's cost.
  int64_t window = 4096;
  // Which requests may enter which worker's KV memory (router/core/admission/kv_admission.h). REQUIRES:
  // CheckKvAdmission accepts it with the lookahead.
  KvAdmissionOptions admission;
  // Number of steps in the pool after which a request that fits nowhere holds a worker (stages.h). At least
  // 1.
  int64_t hold_after_steps = kHoldAfterSteps;

  // --- of groups with a barrier ---

  PlanMode plan_mode = PlanMode::kLockstep;
  // Number of steps by which reports arrive late. Every plan is for a step that is as much further ahead, so
  // that the step is still to come. 0 in the router; the simulator measures the cost of stale reports.
  int32_t report_delay_steps = 0;
};

}  // namespace bfio::core
