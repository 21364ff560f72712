// A group of workers: who is in it, its epochs, its plans and its deadlines, without I/O.
//
//   gathering --enough members--> forming --all ready--> serving --a member lost, joined, left--> forming ...
//
// Purpose: everything the router does about one group, as a state machine: events and the time in, commands
// out (commands.h). It drives its scheduler in core::Cluster, so that an epoch of members and an epoch of
// accounts are one thing. Two kinds: BarrierGroup, whose ranks meet in a collective at every step, and
// IndependentGroup, whose ranks step by themselves (--coupling=none; chains of servers).
//
// Membership. After a restart of the router its workers come back one after another, with requests: the first
// epoch waits for all of them, but no longer than restart_settle. A rank that is silent while the others
// report is left out of the next epoch and comes back by a new connection. A member's reports count only
// under the epoch it last said it was ready for; a member that is removed gets a CloseMember, so it can speak
// for nothing any more.
//
// Ownership: borrows the cluster and the request book. Threads: one; no locks, no clock. Deterministic: the
// same events at the same times give the same commands.
#ifndef BFIO_ROUTER_GROUP_GROUP_H_
#define BFIO_ROUTER_GROUP_GROUP_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "router/core/scheduler/cluster.h"
#include "router/group/commands.h"
#include "router/group/step_statistics.h"
#include "router/group/worker_messages.h"
#include "router/group/worker_telemetry.h"

namespace bfio::router {

struct GroupOptions {
  core::GroupIndex index = 0;
  std::string name;
  core::GroupKind kind = core::GroupKind::kBarrier;
  // Members that the first epoch waits for.
  int32_t workers = 1;
  core::PlanMode plan_mode = core::PlanMode::kPipelined;
  // Plans balance the times of workers whose steps are slower or faster than others', instead of their
  // tokens.
  bool worker_speeds = true;
  absl::Duration step_timeout = absl::Seconds(10);
  absl::Duration form_timeout = absl::Seconds(10);
  // After a step's first report, how long the decision waits for the others before it plans without them.
  absl::Duration report_timeout = absl::Milliseconds(200);
  absl::Duration restart_settle = absl::Seconds(5);
  // How long a worker without a router keeps what it holds.
  absl::Duration retain = absl::Seconds(30);
  // Of announcements, by member.
  int64_t max_announced_bytes = int64_t{256} << 20;
  // This router's life (common/base/router_instance.h), above 0.
  uint64_t instance = 1;
};

// What a group asks about requests while an epoch opens; router/requests implements it.
class RequestBook {
 public:
  virtual ~RequestBook() = default;
  // Takes over what a member holds of an earlier router. `active` is what the member runs. Returns the
  // requests that are now this router's and still run there, in the form the scheduler takes them.
  virtual std::vector<core::RequestSpec> Recover(absl::string_view worker_id, std::vector<HeldRequest> held,
                                                 absl::Span<const HeldActive> active) = 0;
  // Tokens that have come from the request's present placement; nothing when nobody waits for the request.
  virtual std::optional<uint32_t> ReceivedSincePlaced(core::RequestId id) const = 0;
  // A count of generated tokens differs from what has been received.
  virtual void CountTokens(uint32_t generated, uint32_t received) = 0;
};

// A member as operators see it.
struct MemberView {
  MemberId id = 0;
  std::string worker_id;
  std::string engine;
  int32_t slots = 0;
  int64_t kv_tokens = 0;
  double service_s = 0;
  bool draining = false;
  // Its rank, while an epoch is open that it belongs to.
  std::optional<core::WorkerIndex> rank;
  WorkerTelemetry telemetry;
};

// What the group can hold, for admission; nothing before its first epoch.
struct GroupCapacity {
  int64_t kv_tokens = 0;
  // Longest prompt + output that every rank takes.
  int64_t max_sequence_tokens = 0;
};

class Group {
 public:
  static std::unique_ptr<Group> Make(const GroupOptions& options, core::Cluster* cluster, RequestBook* book);
  virtual ~Group() = default;

  // --- events ---

  // Refuses with CloseMember: ALREADY_EXISTS, FAILED_PRECONDITION, UNAVAILABLE.
  void OnHello(MemberId member, WorkerHello hello, absl::Time now, Commands& out);
  void OnAnnouncement(MemberId member, Announcement announcement, absl::Time now, Commands& out);
  void OnEpochReady(MemberId member, EpochReady ready, absl::Time now, Commands& out);
  void OnReport(MemberId member, const StepReport& report, absl::Time now, Commands& out);
  // The worker wants to leave: it gets no new requests, and is released when it has none.
  void OnLeave(MemberId member, absl::string_view reason, absl::Time now, Commands& out);
  // Its connection is gone.
  void OnGone(MemberId member, absl::Time now, Commands& out);
  // The edge cuts a member off: it contradicts the protocol.
  void Expel(MemberId member, const absl::Status& why, absl::Time now, Commands& out);
  // NOT_FOUND.
  absl::Status Drain(absl::string_view worker_id, absl::Time now, Commands& out);
  // Acts on deadlines that have passed.
  void OnTimer(absl::Time now, Commands& out);
  absl::Time next_deadline() const;

  // --- decisions ---

  // Makes at most one plan. True when it made one: call Decided, then Decide again.
  bool Decide(absl::Time now, Commands& out);
  // What the last Decide took, measured by the caller.
  void Decided(absl::Duration took, Commands& out);
  // No decision is due: drained members are released, and a parked group hands out its last steps.
  void Settle(absl::Time now, Commands& out);

  // --- views ---

  const GroupOptions& options() const { return options_; }
  bool serving() const;
  // Has served with as many members as it waits for.
  bool complete() const;
  uint64_t epoch() const { return epoch_; }
  bool empty() const { return members_.empty(); }
  bool Has(MemberId member) const { return members_.contains(member); }
  // Before the first epoch, with a member that brings requests of an earlier router.
  bool ExpectsAnnouncements() const;
  // In the order the members came.
  std::vector<MemberView> Members() const;
  GroupCapacity capacity() const { return capacity_; }
  // No step of this epoch has been shorter; nothing while too few have been seen to judge.
  std::optional<absl::Duration> shortest_step() const;
  const StepStatistics& steps() const { return steps_; }

  // Gives up what is placed here, for other groups: every request is lost. REQUIRES: empty().
  void GiveUp(absl::Time now, Commands& out);

  // (private state: membership, epochs, report and stall deadlines, statistics)
};

}  // namespace bfio::router

#endif  // BFIO_ROUTER_GROUP_GROUP_H_
