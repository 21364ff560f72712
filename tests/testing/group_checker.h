// Checks the invariants of a GroupSet's commands for any behaviour of its workers.
//
// Purpose: a simple reference model. It reads the commands in their order, records only which member holds
// which request and what each member was sent last, and compares that with the state of groups and scheduler.
// Threads: one.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "router/core/scheduler/cluster.h"
#include "router/group/commands.h"
#include "router/group/group_set.h"

namespace bfio::router {

class GroupChecker {
 public:
  // Violations go to `broken`, which outlives it.
  explicit GroupChecker(std::vector<std::string>* broken) : broken_(broken) {}

  // --- events ---

  void OnHello(MemberId member) { members_[member]; }
  void OnReady(MemberId member, uint64_t epoch) {
    const auto it = members_.find(member);
    if (it != members_.end() && it->second.offered == epoch) it->second.ready = epoch;
  }
  // The request was recovered together with the member that holds it.
  void OnRecovered(core::RequestId id, MemberId member) { holder_[id] = member; }

  // The commands of one event, before they are carried out. `reporter`: the member whose message caused it.
  void Observe(const Commands& commands, std::optional<MemberId> reporter = std::nullopt) {
    reporter_ = reporter;
    for (const Command& command : commands) std::visit([&](const auto& c) { On(c); }, command);
  }

  // Called between events. What `requests` has ended need not have left its worker yet.
  void Compare(const core::Cluster& cluster, const GroupSet& groups, const RequestBook& requests) {
    std::map<core::GroupIndex, std::map<core::WorkerIndex, MemberId>> ranks;
    std::set<std::string> names;
    for (const auto& group : groups.groups()) {
      const core::GroupIndex index = group->options().index;
      if (group->serving() != open_.contains(index)) Broken("who serves has an open epoch");
      for (const MemberView& member : group->Members()) {
        if (!names.insert(member.worker_id).second) Broken("a worker_id is attached once");
        if (!Attached(member.id)) Broken("a member has attached and was not closed");
        if (member.rank && !ranks[index].emplace(*member.rank, member.id).second)
          Broken("a rank is one member's");
        if (member.rank && !group->serving()) Broken("ranks are of an open epoch");
        if (!group->key() || member.model != group->key()->model) Broken("members of a group have one model");
      }
    }
    for (const auto& [id, member] : holder_) {
      if (!requests.ReceivedSincePlaced(id)) continue;
      const auto location = cluster.LocationOf(id);
      if (!location) {
        Broken(absl::StrCat("request ", id, " is placed, and the scheduler does not know it"));
        continue;
      }
      if (!open_.contains(location->group)) continue;
      const auto& group = ranks[location->group];
      const auto rank = group.find(location->worker);
      if (rank == group.end() || rank->second != member)
        Broken(absl::StrCat("request ", id, " is placed on another member than the one that was told so"));
    }
  }
  // Called after OnTimer.
  void CompareTime(const GroupSet& groups, absl::Time now) {
    if (groups.next_deadline() <= now) Broken("no deadline is in the past after OnTimer");
  }

  // --- results ---

  void Broken(const std::string& promise) { broken_->push_back(promise); }

  std::optional<MemberId> HolderOf(core::RequestId id) const {
    const auto it = holder_.find(id);
    return it == holder_.end() ? std::nullopt : std::optional<MemberId>(it->second);
  }

 private:
  struct MemberState {
    bool closed = false;
    uint64_t offered = 0, ready = 0;
    int64_t apply_step = 0;
    core::WorkerIndex rank = 0;
  };

  bool Attached(MemberId member) const {
    const auto it = members_.find(member);
    return it != members_.end() && !it->second.closed;
  }
  MemberState* AttachedOrBroken(MemberId member) {
    if (Attached(member)) return &members_.at(member);
    Broken("commands are for members that are attached");
    return nullptr;
  }
  void OnReported(core::RequestId id, bool gone) {
    const auto it = holder_.find(id);
    if (it == holder_.end() || it->second != reporter_)
      Broken(absl::StrCat("request ", id, " is reported by a member that does not hold it"));
    if (gone) holder_.erase(id);
  }

  void On(const SendEpoch& send) {
    MemberState* state = AttachedOrBroken(send.to);
    if (state == nullptr) return;
    if (send.epoch.epoch <= state->offered) Broken("epochs grow");
    if (send.epoch.rank >= send.epoch.world_size) Broken("a rank is below the world size");
    state->offered = send.epoch.epoch;
    state->ready = 0;
    state->apply_step = 0;
  }
  void On(const SendPlan& send) {
    MemberState* state = AttachedOrBroken(send.to);
    if (state == nullptr) return;
    if (send.plan.epoch != state->offered || send.plan.epoch != state->ready)
      Broken("a plan is of the epoch that its member is ready for");
    if (send.plan.apply_step <= state->apply_step) Broken("plans grow");
    state->apply_step = send.plan.apply_step;
    for (const core::Placement& placed : send.plan.placements) {
      if (!holder_.emplace(placed.id, send.to).second) Broken("a request is on one member");
      if (placed.wait_steps < 0) Broken("no wait is negative");
    }
  }
  void On(const SendNotice& notice) {
    AttachedOrBroken(notice.to);
    if (notice.text.empty()) Broken("notices have text");
  }
  void On(const SendShutdown& shutdown) { AttachedOrBroken(shutdown.to); }
  void On(const CloseMember& close) {
    if (MemberState* state = AttachedOrBroken(close.to); state != nullptr) state->closed = true;
  }
  void On(const GeneratedTokens& made) { OnReported(made.id, false); }
  void On(const RequestFinished& finished) { OnReported(finished.id, true); }
  void On(const RequestRejected& rejected) { OnReported(rejected.id, true); }
  void On(const RequestPreempted& preempted) { OnReported(preempted.id, true); }
  void On(const RequestLost& lost) {
    if (holder_.erase(lost.id) != 1) Broken("what is lost was placed");
  }
  void On(const EpochOpened& opened) {
    if (!open_.insert(opened.group).second) Broken("an epoch is closed before the next one opens");
  }
  void On(const EpochClosed& closed) {
    if (open_.erase(closed.group) != 1) Broken("only an open epoch is closed");
  }
  void On(const StepDone& done) {
    if (done.summary == nullptr || done.summary->imbalance_tokens < 0) Broken("steps have statistics");
  }
  void On(const EnergyReported& energy) { AttachedOrBroken(energy.member); }
  void On(const LogLine& line) {
    if (line.text.empty()) Broken("log lines have text");
  }

  std::map<MemberId, MemberState> members_;
  std::set<core::GroupIndex> open_;
  std::map<core::RequestId, MemberId> holder_;
  std::optional<MemberId> reporter_;
  std::vector<std::string>* const broken_;
};

}  // namespace bfio::router
