// The router's state at one moment, for operators. Filled by the decision thread on request, and converted to
// the wire (ToProto) on the requesting thread. Plain data. Threads: any.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "bfio/v1/admin.pb.h"
#include "router/core/scheduler/events.h"
#include "router/core/scheduler/scheduler.h"
#include "router/core/scheduler/scheduler_totals.h"
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
  // Set when member.rank is set.
  std::optional<core::Scheduler::WorkerAccount> account;
  int64_t straggler_steps = 0;
  std::optional<EnergyReading> energy;
};

// As v1::PlacementState.
struct PlacementView {
  struct Candidate {
    std::string rule;
    double step_ratio = 1;
  };
  std::string rule;
  int64_t switches = 0;
  std::vector<Candidate> candidates;
  std::vector<Candidate> watched;
};

struct GroupView {
  core::GroupIndex index = 0;
  std::string name;
  core::GroupKind kind = core::GroupKind::kBarrier;
  // GroupKey::model.
  std::string model;
  // 0: no epoch yet.
  uint64_t epoch = 0;
  // An epoch is open.
  bool ready = false;
  std::vector<WorkerView> workers;
  StepTotals steps;
  StepDistributions distributions;
  core::SchedulerTotals scheduler;
  // Empty where the policy has no choice of rules.
  std::optional<PlacementView> placement;
  // Group::predicted_ratio.
  std::optional<double> step_predicted_ratio;
};

struct RouterState {
  // Wall-clock time.
  absl::Time timestamp;
  absl::Duration uptime;
  std::string version;
  core::PlanMode plan_mode = core::PlanMode::kPipelined;
  // --coupling=none.
  bool independent = false;

  std::string policy;
  int32_t horizon = 0;
  std::string objective;

  // Number of members that readiness requires: --min_ranks in each of --groups.
  int32_t expected_workers = 0;
  // Ascending by index.
  std::vector<GroupView> groups;
  // Statistics of removed groups.
  StepTotals retired_steps;
  StepDistributions retired_distributions;
  // Over all groups, including removed ones.
  core::SchedulerTotals scheduler;

  int64_t waiting = 0;
  int64_t max_waiting = 0;
  // Disaggregated prefill, where groups compute prompts for others: prompts that wait for them and that are
  // under way, hand-offs that wait for a rank and the age of the oldest, and the room promised to all these.
  struct HandOffs {
    int64_t prompts_waiting = 0, prompts_under_way = 0, waiting = 0;
    absl::Duration oldest;
    core::Room promised;
  };
  std::optional<HandOffs> hand_offs;
  // Prompt bytes of requests without a first token.
  int64_t waiting_prompt_bytes = 0;
  // Bytes of prompts and tokens kept for replays and resumes.
  int64_t replay_bytes = 0;
  // Number of events that waited when the decision thread last took events.
  int64_t event_queue_depth = 0;
  // record::Recorder::stopped.
  bool decision_log_ended = false;
  RequestTotals requests;
  RequestLatencies latencies;
  std::vector<TenantTotal> tenants;
  // Empty before a worker has reported energy.
  std::optional<EnergyTotals> energy;
};

v1::ClusterState ToProto(const RouterState& state);
v1::StepSummary ToProto(const StepSummary& summary);

}  // namespace bfio::router
