// The groups of one router: which groups exist, and which group a worker belongs to. A worker that names its
// group (--group) joins or creates it. Others are assigned to the first of the router's own groups ("0", "1",
// .. up to --groups) with fewer members than --min_ranks, or else to the one with the fewest. A worker_id is
// unique in the router: a newer connection of the same process replaces its older one, which may be half
// open. A group without members for longer than restart_settle gives up its requests while another group
// serves. Pure, as Group.
//
// Workers that differ in their GroupKey (model, barrier) are never in one group: the worker joins or creates
// the group of its own key beside the one that it names, NAME~xxxxxxxx, and both logs report it. Workers of
// other models than GroupSetOptions::models are refused with FAILED_PRECONDITION. A group forms
//   - with --min_ranks members, so that a minority forms none;
//   - with live requests of an earlier router: after restart_settle, however few its members are;
//   - where a group of that name has served: after restart_settle, with more members than each of the rest,
//   so
//     that a rolling update switches to the new model once it has the majority; with `models`, at once.
// A request that has generated tokens continues only on its model. models() are the models for which such
// requests may wait: one is removed when no group has served it for restart_settle while another serves.
#pragma once

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
#include "absl/types/span.h"
#include "router/core/scheduler/cluster.h"
#include "router/group/group.h"
#include "router/group/group_key.h"

namespace bfio::router {

// The models of a router's groups by number, and which of them requests may still wait for. Requests and the
// scheduler identify a model by a number. A request that has generated tokens continues only on its model; it
// ends when no group has served that model for some time. Numbers are never reused. Bounded, because workers
// name the models. Pure. Threads: one.
class ModelBook {
 public:
  // Beyond this bound, models that are not served are removed.
  static constexpr size_t kMaxModels = 1024;

  // The model's number, above 0; a new one for a new name.
  uint32_t NumberOf(const std::string& model);
  // A request waits for that model, which an earlier router served: the model is kept until Expire removes
  // it. False when the model was known or expected before.
  bool Expect(const std::string& model, absl::Time now);

  // Sets the models that are served from now on, in any order.
  void SetServed(absl::Span<const uint32_t> served, absl::Time now);
  // Removes the models that have been neither served nor expected for `patience`. A removed model becomes
  // known again when it is served.
  void Expire(absl::Duration patience, absl::Time now);
  // When Expire has something to do; infinite: never.
  absl::Time NextExpiry(absl::Duration patience) const;

  // The models that are not removed: names by number.
  const std::map<uint32_t, std::string>& known() const { return known_; }

 private:
  struct Model {
    uint32_t number = 0;
    bool served = false;
    bool gone = false;
    // Since when it is not served, for a model that was served or expected before and is not gone; infinite
    // otherwise.
    absl::Time unserved_since = absl::InfiniteFuture();
  };

  void ListKnown();

  std::map<std::string, Model> models_;
  uint32_t last_ = 0;
  std::map<uint32_t, std::string> known_;
};

struct GroupSetOptions {
  // Options of every group; the set fills in index and name.
  GroupOptions group;
  // Number of groups that must be complete for readiness.
  int32_t groups = 1;
  // Prefixes of the digests of the models that are served; empty: any model.
  std::vector<std::string> models;
};

class GroupSet {
 public:
  // Bound, since workers name groups: beyond it a new name is refused with RESOURCE_EXHAUSTED, unless a group
  // without members can be removed.
  static constexpr int32_t kMaxGroups = 64;

  // Borrows both. The router's own groups exist from the start.
  GroupSet(const GroupSetOptions& options, core::Cluster* cluster, RequestBook* book);

  // Events. Events of members that were closed and still send are dropped. REQUIRES: OnGone comes once for
  // every connection that sent a hello, also after its CloseMember.
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
  // Group::Settle for all groups, also those without an open epoch. Called when no decision is due.
  void Settle(absl::Time now, Commands& out);

  // At least `groups` groups serve.
  bool ready() const;
  // At least one group serves.
  bool serving() const;
  // At least `groups` groups have served with --min_ranks members.
  bool complete() const;
  bool ExpectsAnnouncements() const;
  // Of the groups that have served and were not given up.
  std::vector<GroupCapacity> capacities() const;
  // Minimum over the groups; empty while no group has timed enough steps.
  std::optional<absl::Duration> shortest_step() const;

  // The models that requests with generated tokens may wait for: names by number.
  const std::map<uint32_t, std::string>& models() const { return models_.known(); }
  // A request that has generated tokens under an earlier router waits for that model, for at most
  // restart_settle while another group serves. True when models() has changed.
  bool ExpectModel(const std::string& model, absl::Time now) { return models_.Expect(model, now); }

  // Null when the group does not exist.
  Group* Find(core::GroupIndex index);
  // All groups in the order of their indices.
  const std::vector<std::unique_ptr<Group>>& groups() const { return groups_; }
  // Statistics of the groups that MakeWay has removed.
  const StepTotals& retired_steps() const { return retired_steps_; }
  const StepDistributions& retired_distributions() const { return retired_distributions_; }

 private:
  // Null for members that are unknown or closed.
  Group* GroupOf(MemberId member);
  Group* FindNamed(absl::string_view name);
  GroupKey KeyOf(const WorkerHello& hello) const;
  absl::Status CheckConfigured(const WorkerHello& hello) const;
  // The group for workers of that key: that of the name, or the one beside it; null when there is none yet.
  Group* FindFor(absl::string_view name, const GroupKey& key);
  // The name of a worker's group, or the name that the group is beside.
  std::string NameFor(const WorkerHello& hello, const GroupKey& key);
  // The group for a worker; ALREADY_EXISTS, FAILED_PRECONDITION, RESOURCE_EXHAUSTED. Logs on both ends when
  // it is not the group of the requested name.
  absl::StatusOr<Group*> Assign(MemberId member, const WorkerHello& hello, absl::Time now, Commands& out);
  void LogAssignedElsewhere(MemberId member, const WorkerHello& hello, const Group& named, const Group& group,
                            Commands& out) const;
  // Removes the older connection of this worker process, if there is one.
  void TakeOver(const WorkerHello& hello, absl::Time now, Commands& out);
  Group* Add(std::string name, bool hands_over = false);
  // Removes a group without members that is not one of the router's own. False when there is none.
  bool MakeWay(absl::Time now, Commands& out);
  // Called after members have joined or left.
  void OnMembers(absl::Time now, Commands& out);
  void FormMajorities(absl::Time now, Commands& out);
  int32_t CountIf(bool (Group::*state)() const) const;

  const GroupSetOptions options_;
  core::Cluster* const cluster_;
  RequestBook* const book_;
  core::GroupIndex next_index_ = 0;
  ModelBook models_;
  std::vector<std::unique_ptr<Group>> groups_;
  // Group of each connection that sent a hello and is not gone, including closed ones.
  absl::flat_hash_map<MemberId, core::GroupIndex> group_of_;
  StepTotals retired_steps_;
  StepDistributions retired_distributions_;
};

}  // namespace bfio::router
