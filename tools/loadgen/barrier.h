// What the group did during the run, from two readings of its running sums.
//
// Purpose: the figures this project is about (how long ranks wait for each other) beside the client's. Pure.
#ifndef BFIO_TOOLS_LOADGEN_BARRIER_H_
#define BFIO_TOOLS_LOADGEN_BARRIER_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"

namespace bfio::loadgen {

// Joules of all workers' devices: while they worked, waited in steps, and were parked.
struct EnergyJoules {
  double busy = 0;
  double barrier = 0;
  double parked = 0;
};

// A reading of Admin.GetClusterState, apart from protobuf; the sums are those of StepTotals.
struct BarrierReading {
  std::string policy;
  uint64_t epoch = 0;
  // Workers in the epoch at the time.
  uint32_t ranks = 0;
  double uptime_s = 0;
  uint64_t steps = 0;
  double imbalance_tokens = 0;
  double max_load_tokens = 0;
  double mean_load_tokens = 0;
  double barrier_wait_s = 0;
  double rank_step_s = 0;
  double gap_s = 0;
  uint64_t gap_count = 0;
  double max_local_s = 0;
  uint64_t decisions = 0;
  double decide_s = 0;
  uint64_t late_plans = 0;
  uint64_t saturated_steps = 0;
  uint64_t decisions_stopped_early = 0;
  // Where some worker measures it.
  std::optional<EnergyJoules> energy;
  // Every step is one rank's.
  bool uncoupled = false;
};

// Means over the steps between two readings.
struct BarrierFigures {
  std::string policy;
  uint32_t ranks = 0;
  uint64_t steps = 0;
  // Share of the ranks' step time spent waiting at the barrier.
  double idle_fraction = 0;
  // 1 - mean load / max load: what the idle share would be if a step took time by its load alone (c = 0).
  double load_idle_fraction = 0;
  double avg_imbalance_tokens = 0;
  double step_s_mean = 0;
  // Slowest rank's local work.
  double local_s_max_mean = 0;
  // From a barrier to the next local work: what the router costs the group.
  double gap_s_mean = 0;
  double decide_s_mean = 0;
  uint64_t late_plans = 0;
  double saturated_fraction = 0;
  // Decisions that --decide_budget_ms ended.
  uint64_t decisions_stopped_early = 0;
  // Between the workers' last readings before either end of the run: they come every few seconds.
  std::optional<EnergyJoules> energy;
  // The group re-formed in between (a worker left or joined); step_s_mean then assumes the last size
  // throughout.
  bool epoch_changed = false;
};

// UNAVAILABLE when the router restarted in between, or took no step.
absl::StatusOr<BarrierFigures> Between(const BarrierReading& before, const BarrierReading& after);

}  // namespace bfio::loadgen

#endif  // BFIO_TOOLS_LOADGEN_BARRIER_H_
