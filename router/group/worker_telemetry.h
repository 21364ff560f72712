// Measured step costs of a worker, and the times that plans use.
//
// Purpose: kept per member by the group. The edge checks the values. Plain data. Threads: the group's.
#ifndef BFIO_ROUTER_GROUP_WORKER_TELEMETRY_H_
#define BFIO_ROUTER_GROUP_WORKER_TELEMETRY_H_

#include <cstdint>
#include <optional>

#include "common/cost/batch_time.h"
#include "common/cost/online_fit.h"
#include "router/core/scheduler/worker_speeds.h"
#include "router/group/worker_messages.h"

namespace bfio::router {

struct WorkerTelemetry {
  std::optional<StepCostEstimate> cost;
  std::optional<BatchCost> batch_cost;
  // The times that plans use.
  core::WorkerTime time;
  // Mean service time of a request on this worker (core::WorkerSpec::service_time).
  double service_time = 1;
  // Prompt tokens of its last step, and of all its reports.
  int64_t step_prefill_tokens = 0;
  int64_t prefill_tokens = 0;
  // As of its last report (StepReport).
  int32_t extra_slots = 0;
  std::optional<EngineLoad> engine_load;
  // Sums over all its reports that give prefix cache hits: prompt tokens of requests that have begun to
  // generate, and the prompt tokens that it found in its prefix cache.
  int64_t prefix_cache_queries = 0, prefix_cache_hits = 0;
};

}  // namespace bfio::router

#endif  // BFIO_ROUTER_GROUP_WORKER_TELEMETRY_H_
