// The events of a router's groups and of the waiting pool that they share, as plain data. The events of all
// code that drives a Cluster (cluster.h) or observes one: router, recorder, replay and simulator. Spans
// inside a Report are borrowed for the call. Threads: any, plain data.
#pragma once

#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "router/core/model/request.h"
#include "router/core/model/snapshot.h"
#include "router/core/policy/policy.h"
#include "router/core/scheduler/events.h"

namespace bfio::core {

// --- groups ---

// Adds a group without workers; OpenEpoch gives it workers. Indices ascend and are never reused.
struct AddGroup {
  GroupIndex group = 0;
  GroupKind kind = GroupKind::kBarrier;
};

// Removes the group. Outcome::displaced has the requests that were placed there.
struct RemoveGroup {
  GroupIndex group = 0;
};

// --- the waiting pool ---

// Status: RESOURCE_EXHAUSTED when the pool is full; ALREADY_EXISTS when the id is known.
struct Enqueue {
  RequestSpec request;
};

// Returns a request whose worker was lost, or has preempted it, to the pool, ahead of its priority class and
// regardless of the pool's bound. It has begun, so it does not wait for a batch. Status: ALREADY_EXISTS when
// the id is known.
struct Requeue {
  RequestSpec request;
};

// Cancels a request. Outcome::cancel has the result.
struct Cancel {
  RequestId id = 0;
};

// --- membership of a group ---

// Starts a new epoch. Placed requests that some member holds stay placed there; Outcome::displaced has the
// ids of all others that were placed in this group: their worker is gone. A request that a member holds and
// that is unknown here is dropped by the first plan, unless it is in the member's `recovered` list: then it
// is placed there from now on. Steps count from 1 again; the workers wait for the plan of step 1. Without
// members the group stays closed.
struct OpenEpoch {
  GroupIndex group = 0;
  std::vector<EpochMember> members;
  // The number of the model that all members compute; 0: unknown, and every request may be placed there.
  uint32_t model = 0;
  // The RequestSpec::needs that at least one member does not meet.
  uint32_t lacks = 0;
};

// No plans until OpenEpoch. Placed requests stay recorded.
struct CloseEpoch {
  GroupIndex group = 0;
};

// A draining worker takes no new requests.
struct SetAcceptsNew {
  GroupIndex group = 0;
  WorkerIndex worker = 0;
  bool accepts_new = true;
};

// From the next plan on, the worker's steps are assumed to take time_offset + time_per_token * load.
// REQUIRES: both finite, time_per_token > 0.
struct SetTime {
  GroupIndex group = 0;
  WorkerIndex worker = 0;
  double time_per_token = 1;
  double time_offset = 0;
};

// From the next plan on, a mean request is assumed to take this time on the worker. REQUIRES: finite, above
// 0.
struct SetServiceTime {
  GroupIndex group = 0;
  WorkerIndex worker = 0;
  double service_time = 1;
};

// From the next plan on, the worker's batches are assumed to have this cost, and its group's steps these
// terms. REQUIRES: finite, at least 0, a_s_per_token above 0.
struct SetCost {
  GroupIndex group = 0;
  WorkerIndex worker = 0;
  BatchCost cost;
  GroupTerms terms;
};

// --- steps ---

// One rank's report. Status: INVALID_ARGUMENT when it contradicts the state (unknown rank, a step that does
// not follow the rank's last one); the state is unchanged then. Finished, rejected or preempted ids that are
// not on that worker are ignored and counted. Preempted requests are removed: Requeue puts them back, with
// their generated tokens as part of their prompts.
struct Report {
  GroupIndex group = 0;
  WorkerIndex worker = 0;
  StepReport report;
};

// Decides for one group. No Outcome::plan when none is due: the epoch is closed, the plan for the target step
// is out already, or the group is idle and there is nothing to place or drop. `force`, for groups with a
// barrier, plans one step further than the complete reports allow, from the reports received so far. `rule`,
// for replays: the rule of placement that was followed. The group follows it, and from then on chooses none
// itself until SetPolicy. Ignored where the policy has no such rule.
struct MakePlan {
  GroupIndex group = 0;
  bool force = false;
  std::optional<PlacementRule> rule = std::nullopt;
};

// All groups decide by this policy from now on. Status: the reason if the policy could not be made; nothing
// has changed then.
struct SetPolicy {
  PolicySetting setting;
};

using SchedulerEvent =
    std::variant<AddGroup, RemoveGroup, Enqueue, Requeue, Cancel, OpenEpoch, CloseEpoch, SetAcceptsNew,
                 SetTime, SetServiceTime, SetCost, Report, MakePlan, SetPolicy>;

// The result of an event. Fields that do not apply to the event have these defaults.
struct Outcome {
  // NOT_FOUND when there is no such group; else as described at the events.
  absl::Status status;
  CancelOutcome cancel = CancelOutcome::kUnknown;
  // Ascending.
  std::vector<RequestId> displaced;
  std::optional<Plan> plan;
  // For MakePlan: whether the policy was called, with or without a plan, and whether PolicyOptions::stop
  // ended its search.
  bool policy_called = false;
  bool stopped_early = false;
  // For MakePlan: the rule of placement that the policy had to follow, where it has any and requests waited.
  std::optional<PlacementRule> rule = std::nullopt;
};

}  // namespace bfio::core
