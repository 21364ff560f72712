#include "tools/loadgen/barrier.h"

namespace bfio::loadgen {
namespace {

// Seconds: uptimes are whole seconds.
constexpr int64_t kSameStart = 2;

double Ratio(double part, double whole) {
  return whole > 0 ? part / whole : 0;
}

// When the router started, by its clock: seconds since 1970.
int64_t StartOf(const v1::ClusterState& state) {
  return state.timestamp().seconds() - state.uptime().seconds();
}

}  // namespace

absl::StatusOr<BarrierMeasurements> Between(const v1::ClusterState& before, const v1::ClusterState& after) {
  const v1::StepTotals &from = before.steps(), &to = after.steps();
  // A younger router may have taken more steps than the first had before the run.
  bool restarted = StartOf(after) > StartOf(before) + kSameStart;
  for (const auto count : {&v1::StepTotals::steps, &v1::StepTotals::gap_count, &v1::StepTotals::decisions,
                           &v1::StepTotals::late_plans, &v1::StepTotals::saturated_steps,
                           &v1::StepTotals::decisions_stopped_early}) {
    restarted |= (to.*count)() < (from.*count)();
  }
  if (restarted) return absl::UnavailableError("the router restarted during the run; no barrier results");
  if (to.steps() == from.steps())
    return absl::UnavailableError("the group ran no step during the run; no barrier results");
  const auto grown = [&](auto field) { return static_cast<double>((to.*field)() - (from.*field)()); };
  const double steps = grown(&v1::StepTotals::steps), rank_step_s = grown(&v1::StepTotals::rank_step_s);
  const double max_load = grown(&v1::StepTotals::max_load_tokens);
  BarrierMeasurements f;
  f.policy = after.policy().name();
  for (const v1::WorkerState& worker : after.workers()) f.ranks += worker.has_rank() ? 1 : 0;
  f.steps = to.steps() - from.steps();
  f.idle_fraction = Ratio(grown(&v1::StepTotals::barrier_wait_s), rank_step_s);
  f.load_idle_fraction = max_load > 0 ? 1 - grown(&v1::StepTotals::mean_load_tokens) / max_load : 0;
  f.avg_imbalance_tokens = grown(&v1::StepTotals::imbalance_tokens) / steps;
  // Without a barrier every step is a step of one rank.
  f.step_s_mean = Ratio(rank_step_s, steps * (after.uncoupled() ? 1 : f.ranks));
  f.local_s_max_mean = grown(&v1::StepTotals::max_local_s) / steps;
  f.gap_s_mean = Ratio(grown(&v1::StepTotals::gap_s), grown(&v1::StepTotals::gap_count));
  f.decide_s_mean = Ratio(grown(&v1::StepTotals::decide_s), grown(&v1::StepTotals::decisions));
  f.late_plans = to.late_plans() - from.late_plans();
  f.saturated_fraction = grown(&v1::StepTotals::saturated_steps) / steps;
  f.decisions_stopped_early = to.decisions_stopped_early() - from.decisions_stopped_early();
  if (after.has_energy()) {
    f.energy = after.energy();
    f.energy->set_busy_j(after.energy().busy_j() - before.energy().busy_j());
    f.energy->set_barrier_j(after.energy().barrier_j() - before.energy().barrier_j());
    f.energy->set_parked_j(after.energy().parked_j() - before.energy().parked_j());
  }
  f.epoch_changed = after.epoch() != before.epoch();
  return f;
}

}  // namespace bfio::loadgen
