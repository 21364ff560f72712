// A cluster's state as plain data, for Cluster::Save and Cluster::Restore.
//
// Purpose: a decision log without its first segments starts from such a state, and tests compare two clusters
// by it. Values that follow from other fields (loads, reservations, counts) are not in it, so they
// cannot be inconsistent. Also omitted: the state of policies, lookahead and reference wait, the models
// of prefix caches, and the rates that admission has measured. Units: tokens, steps. Threads: plain
// data.
#ifndef BFIO_ROUTER_CORE_SCHEDULER_SCHEDULER_STATE_H_
#define BFIO_ROUTER_CORE_SCHEDULER_SCHEDULER_STATE_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "router/core/model/request.h"
#include "router/core/scheduler/events.h"
#include "router/core/scheduler/pool_clock.h"
#include "router/core/scheduler/prompt_traffic.h"
#include "router/core/scheduler/tenant_service.h"

namespace bfio::core {

struct SchedulerTotals {
  int64_t plans = 0;
  // Calls of the policy; not every call gives a plan (MakePlan).
  int64_t policy_calls = 0;
  // Acknowledgements that arrived after the plan's step.
  int64_t late_plans = 0;
  int64_t drift_tokens = 0;
  // Finished or rejected ids that were not on the reporting worker.
  int64_t unknown_ids = 0;
  // Assignments that broke a policy's contract and were discarded; 0 unless a policy has a bug.
  int64_t policy_violations = 0;
  // Requests that workers removed because they lacked KV.
  int64_t preempted = 0;
  // Requests that waited for a batch.
  int64_t held_back = 0;

  SchedulerTotals& operator+=(const SchedulerTotals& other);
};

// A plan's step, and its level.
struct PlannedLevel {
  int64_t step = 0;
  std::optional<double> level_s;
};

// The state that all groups share.
struct PoolState {
  struct Waiting {
    RequestSpec spec;
    int64_t enqueued_step = 0;
    // Not in the pool yet: it waits for a batch.
    bool held_back = false;
    // WaitingView::passed_over.
    bool passed_over = false;
  };
  // In the pool's order; then those held back.
  std::vector<Waiting> waiting;
  TenantService::Saved service;
  PoolClock::Saved clock;
};

struct GroupState {
  struct Resident {
    RequestSpec spec;
    // Planned, not acknowledged.
    bool inflight = false;
    // The step in which it first ran; in flight, the step in which it is expected to start.
    int64_t first_step = 0;
    int64_t enqueued_step = 0;
    // A plan has dropped it.
    bool dropped = false;
    // Age up to which it has been observed and charged (residents.h).
    int64_t settled_age = 0;
    // Its share of the worker's drift.
    int64_t drift = 0;
    // The step for which it was placed.
    int64_t planned_for = 0;
  };
  // One placement or drop that its worker has not acknowledged.
  struct Inflight {
    int64_t apply_step = 0;
    RequestId id = 0;
    bool drop = false;
  };
  struct Worker {
    WorkerSpec spec;
    int64_t last_step = 0;
    // Without a barrier: the largest apply_step of its plans, and of those that it has applied.
    int64_t planned_step = 0;
    int64_t applied = 0;
    // The last report said that the group is idle.
    bool idle = true;
    // Load that the account does not explain, including the shares assigned to residents.
    int64_t drift = 0;
    // In the scheduler's order, because sums depend on it.
    std::vector<Resident> residents;
    // In order of apply_step.
    std::vector<Inflight> inflight;
    // Cancellations waiting for the next plan.
    std::vector<RequestId> drops;
    std::optional<PrefillReport> prefill;
    int32_t extra_slots = 0;
    int64_t shared_kv_tokens = 0;
  };

  GroupIndex group = 0;
  GroupKind kind = GroupKind::kBarrier;
  // By rank.
  std::vector<Worker> workers;
  bool open = false;
  // The model of its epoch.
  uint32_t model = 0;
  int64_t reported_step = 0;
  int64_t planned_step = 0;
  int64_t decided_step = 0;
  // Without a barrier: reports in the epoch; for coupled ranks those of the present step, with the requests
  // placed in it.
  int64_t reports = 0;
  int64_t placed_in_step = 0;
  // The request that holds a worker, where admission looks ahead.
  std::optional<RequestId> holder;
  // The levels of plans that a worker may not have executed yet, and of the plan before; ascending by step.
  std::vector<PlannedLevel> levels;
  PromptTraffic traffic;
  SchedulerTotals totals;
};

struct ClusterState {
  PoolState pool;
  // By index, ascending.
  std::vector<GroupState> groups;
  // The largest index that was ever used; below 0: none.
  GroupIndex last_group = -1;
  // Totals of removed groups.
  SchedulerTotals retired;
};

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_SCHEDULER_SCHEDULER_STATE_H_
