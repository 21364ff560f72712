#include "tools/loadgen/admin.h"

#include "bfio/v1/admin.grpc.pb.h"
#include "common/net/status.h"
#include "grpcpp/client_context.h"

namespace bfio::loadgen {

absl::StatusOr<BarrierReading> ReadBarrier(const std::shared_ptr<grpc::Channel>& admin, const Login& login,
                                           absl::Duration timeout) {
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
  login.Present(context);
  v1::ClusterState state;
  const grpc::Status status = v1::Admin::NewStub(admin)->GetClusterState(&context, {}, &state);
  if (!status.ok()) return FromGrpcStatus(status);
  const v1::StepTotals& totals = state.steps();
  BarrierReading reading = {
      .policy = state.policy().name(),
      .epoch = state.epoch(),
      .started_s = static_cast<double>(state.timestamp().seconds() - state.uptime().seconds()),
      .steps = totals.steps(),
      .imbalance_tokens = totals.imbalance_tokens(),
      .max_load_tokens = totals.max_load_tokens(),
      .mean_load_tokens = totals.mean_load_tokens(),
      .barrier_wait_s = totals.barrier_wait_s(),
      .rank_step_s = totals.rank_step_s(),
      .gap_s = totals.gap_s(),
      .gap_count = totals.gap_count(),
      .max_local_s = totals.max_local_s(),
      .decisions = totals.decisions(),
      .decide_s = totals.decide_s(),
      .late_plans = totals.late_plans(),
      .saturated_steps = totals.saturated_steps(),
      .decisions_stopped_early = totals.decisions_stopped_early(),
      .uncoupled = state.uncoupled(),
  };
  if (state.has_energy()) {
    reading.energy = {state.energy().busy_j(), state.energy().barrier_j(), state.energy().parked_j()};
  }
  for (const v1::WorkerState& worker : state.workers()) reading.ranks += worker.has_rank() ? 1 : 0;
  return reading;
}

}  // namespace bfio::loadgen
