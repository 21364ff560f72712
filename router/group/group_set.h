// The groups of one router: which group a worker belongs to, and which groups there are.
//
// Purpose: routes workers' events to their group, and forms groups. A worker that names its group (--group)
// joins that one; a name that is new forms a new group. A worker that names none is assigned to the first of
// the router's own groups ("0", "1", .. up to --groups) that has fewer members than --workers, or else to the
// one with the fewest. A worker_id is unique in the router. A group without members for longer than
// restart_settle gives its requests up while another group serves. Pure, as Group.
#ifndef BFIO_ROUTER_GROUP_GROUP_SET_H_
#define BFIO_ROUTER_GROUP_GROUP_SET_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "router/core/scheduler/cluster.h"
#include "router/group/group.h"

namespace bfio::router {

struct GroupSetOptions {
  // Of every group; index and name are set by the set.
  GroupOptions group;
  // Groups that must be complete for readiness.
  int32_t groups = 1;
};

class GroupSet {
 public:
  // Names of groups come from workers: beyond so many groups a new name is refused, RESOURCE_EXHAUSTED,
  // unless a group without members can make way.
  static constexpr int32_t kMaxGroups = 64;

  // Borrows both. The router's own groups are there from the start.
  GroupSet(const GroupSetOptions& options, core::Cluster* cluster, RequestBook* book);

  // Events; those of members that were closed, and do not know it yet, are dropped. REQUIRES: OnGone comes
  // once for every connection that said hello, also after its CloseMember.
  void OnHello(MemberId member, WorkerHello hello, absl::Time now, Commands& out);
  void OnAnnouncement(MemberId member, Announcement announcement, absl::Time now, Commands& out);
  void OnEpochReady(MemberId member, EpochReady ready, absl::Time now, Commands& out);
  void OnReport(MemberId member, const StepReport& report, absl::Time now, Commands& out);
  void OnLeave(MemberId member, absl::string_view reason, absl::Time now, Commands& out);
  void OnGone(MemberId member, absl::Time now, Commands& out);
  void Expel(MemberId member, const absl::Status& why, absl::Time now, Commands& out);
  absl::Status Drain(absl::string_view worker_id, absl::Time now, Commands& out);
  absl::Status Undrain(absl::string_view worker_id, Commands& out);
  void OnTimer(absl::Time now, Commands& out);
  absl::Time next_deadline() const;

  // At least `groups` groups serve.
  bool ready() const;
  // Some group serves.
  bool serving() const;
  // At least `groups` groups have served with as many members as they wait for.
  bool complete() const;
  bool ExpectsAnnouncements() const;
  // Of all groups that have served: KV in sum, and the shortest of their longest sequences, so that a request
  // that is let in fits every group.
  GroupCapacity capacity() const;
  // The shortest step of any group; nothing while none can judge.
  std::optional<absl::Duration> shortest_step() const;

  // Null when there is no such group.
  Group* Find(core::GroupIndex index);
  // In the order of their indices.
  const std::vector<std::unique_ptr<Group>>& groups() const { return groups_; }

 private:
  // Null for members that are not known, or no more.
  Group* GroupOf(MemberId member);
  Group* FindNamed(absl::string_view name);
  // The group that a worker is to join; RESOURCE_EXHAUSTED.
  absl::StatusOr<Group*> Assign(const WorkerHello& hello, absl::Time now, Commands& out);
  Group* AssignUnnamed(const WorkerHello& hello);
  Group* Add(std::string name);
  // Removes a group without members that is not one of the router's own. False when there is none.
  bool MakeWay(absl::Time now, Commands& out);
  int32_t CountIf(bool (Group::*state)() const) const;

  const GroupSetOptions options_;
  core::Cluster* const cluster_;
  RequestBook* const book_;
  core::GroupIndex next_index_ = 0;
  std::vector<std::unique_ptr<Group>> groups_;
  // Of every connection that said hello and is not gone, closed ones included.
  absl::flat_hash_map<MemberId, core::GroupIndex> group_of_;
};

}  // namespace bfio::router

#endif  // BFIO_ROUTER_GROUP_GROUP_SET_H_
