// The router's state as operators see it, at one moment.
//
// Purpose: filled by the decision thread on request, and converted to the wire (ToProto) on the
// requesting thread. Plain data. Threads: any.
#ifndef BFIO_ROUTER_ADMIN_ROUTER_STATE_H_
#define BFIO_ROUTER_ADMIN_ROUTER_STATE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "bfio/v1/admin.pb.h"
#include "router/core/scheduler/events.h"
#include "router/core/scheduler/scheduler.h"
#include "router/core/scheduler/scheduler_state.h"
#include "router/group/energy_book.h"
#include "router/group/group.h"
#include "router/group/step_statistics.h"
#include "router/group/worker_messages.h"
#include "router/requests/latency_recorder.h"
#include "router/requests/request_totals.h"
#include "router/requests/tenant_totals.h"

namespace bfio::router {

struct WorkerView {
  MemberView member;
  // While member.rank is set.
  std::optional<core::Scheduler::WorkerAccount> account;
  int64_t straggler_steps = 0;
  std::optional<EnergyReading> energy;
};

struct GroupView {
  core::GroupIndex index = 0;
  std::string name;
  core::GroupKind kind = core::GroupKind::kBarrier;
  // As GroupKey has it.
  std::string model;
  // 0: none yet.
  uint64_t epoch = 0;
  // Its epoch is open.
  bool ready = false;
  std::vector<WorkerView> workers;
  StepTotals steps;
  StepDistributions distributions;
  core::SchedulerTotals scheduler;
};

// How a shadow's plans compare with the acting policy's (core::ShadowRegret).
struct ShadowView {
  std::string policy;
  int64_t decisions = 0;
  int64_t avoided_decisions = 0;
  double avoided_idle_tokens = 0;
  int64_t missed_decisions = 0;
  double missed_idle_tokens = 0;
  double avoided_ahead_tokens = 0;
  double missed_ahead_tokens = 0;
};

struct RouterState {
  // By the wall clock.
  absl::Time timestamp;
  absl::Duration uptime;
  std::string version;
  core::PlanMode plan_mode = core::PlanMode::kPipelined;
  // --coupling=none.
  bool independent = false;

  std::string policy;
  int32_t horizon = 0;
  std::string objective;
  std::vector<ShadowView> shadows;

  // Members that readiness waits for: --workers in each of --groups.
  int32_t expected_workers = 0;
  // Ascending by index.
  std::vector<GroupView> groups;
  // Of groups that are gone.
  StepTotals retired_steps;
  StepDistributions retired_distributions;
  // Of all groups, those that are gone included.
  core::SchedulerTotals scheduler;

  int64_t waiting = 0;
  int64_t max_waiting = 0;
  // Prompts of requests that have given no token yet.
  int64_t waiting_prompt_bytes = 0;
  // Prompts and tokens kept for replays and resumes.
  int64_t replay_bytes = 0;
  // Events that the decision thread found waiting when it last took some.
  int64_t event_queue_depth = 0;
  RequestTotals requests;
  RequestLatencies latencies;
  std::vector<TenantTotal> tenants;
  // Nothing before a worker has reported any.
  std::optional<EnergyTotals> energy;
};

v1::ClusterState ToProto(const RouterState& state);
v1::StepSummary ToProto(const StepSummary& summary);

}  // namespace bfio::router

#endif  // BFIO_ROUTER_ADMIN_ROUTER_STATE_H_
