#include "tools/loadgen/barrier.h"

namespace bfio::loadgen {
namespace {

// Seconds: uptimes are whole seconds.
constexpr double kSameStart = 2;

double Ratio(double part, double whole) {
  return whole > 0 ? part / whole : 0;
}

}  // namespace

absl::StatusOr<BarrierMeasurements> Between(const BarrierReading& before, const BarrierReading& after) {
  // A younger router may have taken more steps than the first had before the run.
  const bool restarted = after.started_s > before.started_s + kSameStart;
  if (restarted || after.steps < before.steps || after.gap_count < before.gap_count ||
      after.decisions < before.decisions || after.late_plans < before.late_plans ||
      after.saturated_steps < before.saturated_steps ||
      after.decisions_stopped_early < before.decisions_stopped_early) {
    return absl::UnavailableError("the router restarted during the run; no barrier results");
  }
  if (after.steps == before.steps)
    return absl::UnavailableError("the group ran no step during the run; no barrier results");
  const auto steps = static_cast<double>(after.steps - before.steps);
  const double rank_step_s = after.rank_step_s - before.rank_step_s;
  const double max_load = after.max_load_tokens - before.max_load_tokens;
  BarrierMeasurements f;
  f.policy = after.policy;
  f.ranks = after.ranks;
  f.steps = after.steps - before.steps;
  f.idle_fraction = Ratio(after.barrier_wait_s - before.barrier_wait_s, rank_step_s);
  f.load_idle_fraction =
      max_load > 0 ? 1 - Ratio(after.mean_load_tokens - before.mean_load_tokens, max_load) : 0;
  f.avg_imbalance_tokens = (after.imbalance_tokens - before.imbalance_tokens) / steps;
  f.step_s_mean = Ratio(rank_step_s, steps * (after.uncoupled ? 1 : after.ranks));
  f.local_s_max_mean = (after.max_local_s - before.max_local_s) / steps;
  f.gap_s_mean = Ratio(after.gap_s - before.gap_s, static_cast<double>(after.gap_count - before.gap_count));
  f.decide_s_mean =
      Ratio(after.decide_s - before.decide_s, static_cast<double>(after.decisions - before.decisions));
  f.late_plans = after.late_plans - before.late_plans;
  f.saturated_fraction = static_cast<double>(after.saturated_steps - before.saturated_steps) / steps;
  f.decisions_stopped_early = after.decisions_stopped_early - before.decisions_stopped_early;
  if (after.energy.has_value()) {
    const EnergyJoules start = before.energy.value_or(EnergyJoules());
    f.energy = EnergyJoules{after.energy->busy - start.busy, after.energy->barrier - start.barrier,
                            after.energy->parked - start.parked};
  }
  f.epoch_changed = after.epoch != before.epoch;
  return f;
}

}  // namespace bfio::loadgen
