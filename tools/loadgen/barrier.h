// Statistics of the group's steps during the run, from two readings of the router's cumulative sums.
//
// Purpose: reports how long ranks wait for each other, next to the latencies that clients see. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "bfio/v1/admin.pb.h"

namespace bfio::loadgen {

// Means over the steps between two readings.
struct BarrierMeasurements {
  std::string policy;
  uint32_t ranks = 0;
  uint64_t steps = 0;
  // Share of the ranks' step time that they spent waiting at the barrier.
  double idle_fraction = 0;
  // 1 - mean load / max load: the idle share if the step time depended on the load alone (c = 0).
  double load_idle_fraction = 0;
  double avg_imbalance_tokens = 0;
  double step_s_mean = 0;
  // Mean time of the slowest rank's local work.
  double local_s_max_mean = 0;
  // Mean time from the end of a barrier to the next local work: the delay that the router causes.
  double gap_s_mean = 0;
  double decide_s_mean = 0;
  uint64_t late_plans = 0;
  double saturated_fraction = 0;
  // Decisions whose search --decide_budget_ms stopped.
  uint64_t decisions_stopped_early = 0;
  // Energy between the workers' last readings before the start and before the end of the run; readings are
  // some seconds apart.
  std::optional<v1::EnergyTotals> energy;
  // A worker left or joined during the run; step_s_mean then uses the last number of ranks for the whole run.
  bool epoch_changed = false;
};

// UNAVAILABLE when the router restarted between the readings, or there was no step.
absl::StatusOr<BarrierMeasurements> Between(const v1::ClusterState& before, const v1::ClusterState& after);

}  // namespace bfio::loadgen
