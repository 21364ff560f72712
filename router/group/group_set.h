// The groups of one router: which group a worker belongs to, and which groups there are.
//
// Purpose: routes workers' events to their group, and forms groups. A worker that names its group (--group)
// joins that one; a name that is new forms a new group. A worker that names none is assigned to the first of
// the router's own groups ("0", "1", .. up to --groups) that has fewer members than --workers, or else to the
// one with the fewest. A worker_id is unique in the router; the same process by a newer connection takes the
// place of its older one, which may be half open, at once. A group without members for longer than
// restart_settle gives its requests up while another group serves. Pure, as Group.
//
// Workers that differ in their GroupKey (model, barrier: group_key.h) are never in one group. Where the group
// that a worker names, or would be assigned to, has another key, the worker joins or forms the group of its
// own key beside that one, NAME~xxxxxxxx; both logs say so. So no worker is refused because of earlier ones,
// and a wrong worker that comes first stands alone:
//   - The router's flag wins (GroupSetOptions::models): others are refused,
//     FAILED_PRECONDITION, and ask again.
//   - Else a group forms when it has --workers members, as ever: a minority forms no group.
//   - Workers that bring live requests of an earlier router form a group after restart_settle, however few
//     they are, and the wrong ones beside them delay no other.
//   - Where a group of that name has served before, the others of that name need not be complete: one forms,
//     after restart_settle, as soon as it has more members than each of the rest. So a rolling update moves
//     over to the new model once more than half of the workers hold it; at once, where the router was told
//     which models are served.
// A request that has begun goes on with its model alone (core::RequestSpec::model). models() are those it may
// wait for: a model is gone when no group has served it for restart_settle while another group serves.
#ifndef BFIO_ROUTER_GROUP_GROUP_SET_H_
#define BFIO_ROUTER_GROUP_GROUP_SET_H_

#include <cstdint>
#include <map>
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
#include "router/group/group_key.h"
#include "router/group/model_book.h"

namespace bfio::router {

struct GroupSetOptions {
  // Of every group; index and name are set by the set.
  GroupOptions group;
  // Groups that must be complete for readiness.
  int32_t groups = 1;
  // Beginnings of the models that are served; empty: any.
  std::vector<std::string> models;
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

  // The models that requests which have begun may wait for: names by number.
  const std::map<uint32_t, std::string>& models() const { return models_.known(); }
  // A request that has begun under an earlier router waits for that model, for restart_settle while another
  // group serves. True when models() has changed.
  bool ExpectModel(const std::string& model, absl::Time now) { return models_.Expect(model, now); }

  // Null when there is no such group.
  Group* Find(core::GroupIndex index);
  // In the order of their indices.
  const std::vector<std::unique_ptr<Group>>& groups() const { return groups_; }
  // Of groups that have made way for others.
  const StepTotals& retired_steps() const { return retired_steps_; }
  const StepDistributions& retired_distributions() const { return retired_distributions_; }

 private:
  // Null for members that are not known, or no more.
  Group* GroupOf(MemberId member);
  Group* FindNamed(absl::string_view name);
  GroupKey KeyOf(const WorkerHello& hello) const;
  absl::Status CheckConfigured(const WorkerHello& hello) const;
  // The group of that name, or beside it, for workers of that key; null: there is none yet.
  Group* FindFor(absl::string_view name, const GroupKey& key);
  // The name that a worker's group has, or is beside of.
  std::string NameFor(const WorkerHello& hello, const GroupKey& key);
  // The group that a worker is to join; ALREADY_EXISTS, FAILED_PRECONDITION, RESOURCE_EXHAUSTED. Tells both
  // ends when it is not the one of that name.
  absl::StatusOr<Group*> Assign(MemberId member, const WorkerHello& hello, absl::Time now, Commands& out);
  void TellBeside(MemberId member, const WorkerHello& hello, const Group& named, const Group& group,
                  Commands& out) const;
  // Removes the member that this worker was by an earlier connection.
  void TakeOver(const WorkerHello& hello, absl::Time now, Commands& out);
  Group* Add(std::string name);
  // Removes a group without members that is not one of the router's own. False when there is none.
  bool MakeWay(absl::Time now, Commands& out);
  // Members have come or gone.
  void OnMembers(absl::Time now, Commands& out);
  void FormMajorities(absl::Time now, Commands& out);
  int32_t CountIf(bool (Group::*state)() const) const;

  const GroupSetOptions options_;
  core::Cluster* const cluster_;
  RequestBook* const book_;
  core::GroupIndex next_index_ = 0;
  ModelBook models_;
  std::vector<std::unique_ptr<Group>> groups_;
  // Of every connection that said hello and is not gone, closed ones included.
  absl::flat_hash_map<MemberId, core::GroupIndex> group_of_;
  StepTotals retired_steps_;
  StepDistributions retired_distributions_;
};

}  // namespace bfio::router

#endif  // BFIO_ROUTER_GROUP_GROUP_SET_H_
