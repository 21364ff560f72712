// What workers say that their steps cost, and the times that plans reckon with.
//
// Purpose: kept per member by the group. Values are checked by the edge. Plain data. Threads: the group's.
#ifndef BFIO_ROUTER_GROUP_WORKER_TELEMETRY_H_
#define BFIO_ROUTER_GROUP_WORKER_TELEMETRY_H_

#include <cstdint>
#include <optional>

#include "common/cost/batch_time.h"
#include "common/cost/online_fit.h"
#include "router/core/scheduler/worker_speeds.h"

namespace bfio::router {

struct WorkerTelemetry {
  std::optional<StepCostEstimate> cost;
  std::optional<BatchCost> batch_cost;
  // What plans reckon with.
  core::WorkerTime time;
  // What a mean request takes there (core::WorkerSpec::service_time).
  double service_time = 1;
  // Prompt tokens of its last step, and of all that it has reported.
  int64_t step_prefill_tokens = 0;
  int64_t prefill_tokens = 0;
};

}  // namespace bfio::router

#endif  // BFIO_ROUTER_GROUP_WORKER_TELEMETRY_H_
