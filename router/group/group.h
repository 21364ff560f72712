// A group of workers: its members, its epochs, its plans and its deadlines, without I/O.
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
// Its members agree in a GroupKey (group_key.h): GroupSet chooses their group by it. A group without members,
// on which nothing is placed, may be given another key; its first epoch waits for all members again.
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
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "router/core/scheduler/cluster.h"
#include "router/core/scheduler/worker_speeds.h"
#include "router/group/commands.h"
#include "router/group/group_key.h"
#include "router/group/member.h"
#include "router/group/member_history.h"
#include "router/group/step_statistics.h"
#include "router/group/worker_messages.h"
#include "router/group/worker_telemetry.h"
#include "router/requests/request_book.h"

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
  // Of announcements, of all members of all groups together.
  int64_t max_announced_bytes = int64_t{256} << 20;
  // This router's life (common/base/router_instance.h), above 0.
  uint64_t instance = 1;
};

// A member as operators see it.
struct MemberView {
  MemberId id = 0;
  std::string worker_id;
  std::string engine;
  // As WorkerHello has it.
  std::string model;
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

  // --- what members have in common ---

  // Of the present members, or the last ones; nothing before the first.
  const std::optional<GroupKey>& key() const { return key_; }
  // The number of the key's model; 0: there is no key.
  uint32_t model() const { return model_; }
  // Workers of that key can be members.
  bool Takes(const GroupKey& key) const { return !key_ || *key_ == key || free(); }
  // REQUIRES: Takes(key).
  void SetKey(const GroupKey& key, uint32_t model);

  // --- events ---

  // Refuses with CloseMember: ALREADY_EXISTS, FAILED_PRECONDITION, UNAVAILABLE. REQUIRES: the hello's key is
  // key().
  void OnHello(MemberId member, WorkerHello hello, absl::Time now, Commands& out);
  // `elsewhere_bytes` are announced to other groups, which share the bound.
  void OnAnnouncement(MemberId member, Announcement announcement, absl::Time now, Commands& out,
                      int64_t elsewhere_bytes = 0);
  // What members have announced and no epoch has opened with yet.
  int64_t announced_bytes() const;
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
  // Does not wait for more members than there are. REQUIRES: gathering().
  void FormWithFewer(absl::Time now, Commands& out);
  // It takes new requests again. NOT_FOUND, or FAILED_PRECONDITION when it does not drain, or leaves of its
  // own accord.
  absl::Status Undrain(absl::string_view worker_id, Commands& out);
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
  bool serving() const { return phase_ == Phase::kServing; }
  // Its first epoch waits for more members.
  bool gathering() const { return phase_ == Phase::kGathering && !members_.empty(); }
  bool formed_once() const { return formed_once_; }
  // It serves, or will again with the members that it has.
  bool carries_on() const { return formed_once_ && !members_.empty(); }
  // Has served with as many members as it waits for.
  bool complete() const { return complete_; }
  uint64_t epoch() const { return epoch_; }
  int32_t size() const { return static_cast<int32_t>(members_.size()); }
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

  // The member with that id; nothing when none has it.
  std::optional<MemberId> FindWorker(absl::string_view worker_id) const;
  // The member that is the same process by an earlier connection, which is dead therefore.
  std::optional<MemberId> FindSuperseded(const WorkerHello& hello) const;
  // A worker of that id was draining when its connection broke.
  bool RemembersDraining(const std::string& worker_id) const { return history_.WasDraining(worker_id); }

  // When a group that is empty should give up what is placed here, if others serve; infinite when it has
  // members or nothing to give up.
  absl::Time give_up_at() const { return give_up_at_; }
  // Gives up what is placed here, for other groups: every request is lost. REQUIRES: empty().
  void GiveUp(absl::Time now, Commands& out);

 protected:
  enum class Phase {
    kGathering,  // too few workers; no deadline
    kSettling,   // an epoch is to be formed at the deadline: other changes may come along until then
    kForming,    // EpochOffers sent; EpochReady of all is due at the deadline
    kServing,
  };
  // Of the event that is being handled.
  struct Context {
    absl::Time now;
    Commands& out;
  };
  // Joins come in bursts, and of a group that loses several members at once each connection breaks by itself:
  // waiting a little makes one epoch of them.
  static constexpr absl::Duration kSettleAfterJoin = absl::Milliseconds(100);
  // It doubles with each newcomer that has lately left while an epoch was formed with it: with NCCL that
  // takes seconds without decoding, and a worker that crashes as it starts returns at once.
  static constexpr absl::Duration kLongestSettleAfterJoin = absl::Seconds(30);
  static constexpr absl::Duration kSettleAfterLoss = absl::Milliseconds(20);
  // After a failed attempt to form, so that a persistent cause does not spin.
  static constexpr absl::Duration kSettleAfterFailure = absl::Milliseconds(500);
  // What a member's answer may take beyond the time it has for forming.
  static constexpr absl::Duration kFormGrace = absl::Seconds(1);

  Group(const GroupOptions& options, core::Cluster* cluster, RequestBook* book);

  // --- what the kinds do differently ---

  // Whether a worker can be in this kind of group.
  virtual absl::Status CheckKind(const WorkerHello& hello) const = 0;
  // What an offer of the epoch being formed says of ranks and communicator.
  virtual void FillOffer(const Member& member, EpochOffer& offer) const = 0;
  // How long the ranks have to answer an EpochOffer sent now.
  virtual absl::Duration FormTime() const = 0;
  // All have answered, not all could form.
  virtual void OnFormingFailed(const Context& context) = 0;
  // It has not answered in time.
  virtual void OnLateToForm(Member& member, const absl::Status& why, const Context& context) = 0;
  // Before an epoch is formed. False: not yet, deadline_ says when.
  virtual bool PrepareToForm(const Context& context) { return true; }
  // An epoch is being formed: its steps count from 1.
  virtual void ResetProgress() {}
  // A member of the epoch blames these ranks.
  virtual void OnMissing(Member& member, absl::Span<const uint32_t> missing) {}
  // An open epoch ends because a member's barrier failed.
  virtual void OnBarrierLost(const Context& context) {}
  // The scheduler has taken a report of this member.
  virtual void OnProgress(Member& member, const StepReport& report, const Context& context) = 0;
  virtual void RecordStep(core::WorkerIndex rank, const StepReport& report, absl::Time now,
                          StepStatistics::Summaries& done) = 0;
  virtual void RecordDecision(const core::Plan& plan, absl::Duration took,
                              StepStatistics::Summaries& done) = 0;
  virtual void OnOpened(absl::Time now) {}
  virtual void OnClosed() {}
  // Whether the decision should plan without the reports that are missing; asked once per decision.
  virtual bool TakeForce() { return false; }
  // The apply_step of a rank's part; 0: it gets none.
  virtual int64_t ApplyStepOf(const core::Plan& plan, core::WorkerIndex rank) const = 0;
  virtual void OnPartSent(Member& member, absl::Time now) {}
  virtual void OnPlanSent(absl::Time now) {}
  // Deadlines of steps, besides what single members owe.
  virtual void OnStepTimer(const Context& context) {}
  virtual absl::Time step_deadline() const { return absl::InfiniteFuture(); }

  // --- for the kinds ---

  const core::Scheduler& scheduler() const { return *cluster_->group(options_.index); }
  Member* Find(MemberId id);
  // No worker has a free slot.
  bool Saturated() const;
  bool AnyBehind() const;
  // Cuts off the ranks that are `limit` or longer behind.
  void ExpelSilent(absl::Duration limit, const Context& context);
  // Cuts off a member that keeps the group from forming, and refuses it for a while.
  void Punish(Member& member, const absl::Status& why, const Context& context);
  void CutOff(Member& member, const absl::Status& why, const Context& context);
  // Schedules the forming of a new epoch `delay` from now and closes the present one if `close`.
  void Reform(absl::Duration delay, bool close, const Context& context);
  // A member's barrier failed, or none has made progress.
  void OnBarrierError(Member& member, absl::string_view why, absl::Span<const uint32_t> missing,
                      const Context& context);
  template <typename... Parts>
  void Log(Commands& out, LogLine::Level level, const Parts&... parts) const {
    out.push_back(
        LogLine{level, absl::StrCat("group ", options_.name, ": ", parts...), options_.name, "", epoch_});
  }
  // A line about a worker, which its text begins with.
  template <typename... Parts>
  void Log(Commands& out, LogLine::Level level, const WorkerHello& of, const Parts&... parts) const {
    out.push_back(LogLine{level, absl::StrCat("group ", options_.name, ": worker ", of.worker_id, parts...),
                          options_.name, of.worker_id, epoch_});
  }

  const GroupOptions options_;
  core::Cluster* const cluster_;
  RequestBook* const book_;
  Phase phase_ = Phase::kGathering;
  absl::Time deadline_ = absl::InfiniteFuture();
  uint64_t epoch_ = 0;
  std::map<MemberId, std::unique_ptr<Member>> members_;
  // By rank: of the open epoch, or of the one being formed.
  std::vector<Member*> ranks_;
  StepStatistics steps_;

 private:
  // --- members (group.cc) ---

  // No member, and nothing is placed here.
  bool free() const { return members_.empty() && scheduler().placed() == 0; }
  absl::Duration SettleAfterJoin(absl::Time now) const;
  absl::Status CheckHello(const WorkerHello& hello, absl::Time now) const;
  void BeginDraining(Member& member);
  bool MayLeave(const Member& member) const;
  // A drained member is asked to end, and the others re-form without it.
  void Release(Member& member, const Context& context);
  // Forgets a member; re-forms if it belonged to the epoch.
  void Remove(MemberId id, const absl::Status& why, const Context& context);
  // In the order they came.
  std::vector<Member*> ByArrival() const;
  // Its rank, while an epoch is open that it belongs to.
  std::optional<core::WorkerIndex> RankOf(const Member& member) const;

  // --- epochs (group_epochs.cc) ---

  void BeginForming(const Context& context);
  void SendOffer(const Member& member, Commands& out) const;
  void ExpelLate(const Context& context);
  void FinishForming(const Context& context);
  void CloseEpoch(Commands& out);
  // The scheduler takes the ranks on.
  void OpenEpoch(const Context& context);
  core::EpochMember EpochMemberOf(Member& member, Commands& out);
  void LoseRequests(absl::Span<const core::RequestId> displaced, Commands& out) const;
  // Ranks whose counts of generated tokens differ from what has been received.
  std::vector<Member*> AuditResidents();

  // --- steps (group_steps.cc) ---

  // Before the scheduler takes the report: its requests that are placed on that rank. Others were cancelled
  // meanwhile.
  void FindPlaced(core::WorkerIndex rank, const StepReport& report);
  absl::Status ApplyReport(core::WorkerIndex rank, const StepReport& report, Commands& out);
  // What the report says of them.
  void EmitRequests(const StepReport& report, Commands& out) const;
  void TakeTelemetry(Member& member, const StepReport& report, Commands& out);
  // Tells the scheduler what the workers of the present epoch cost, where that changes anything.
  void UpdateTimes(Commands& out);
  // What a mean request takes on each rank; true where that has changed. `costs`: none before the scheduler
  // has these ranks.
  bool SetServiceTimes(absl::Span<const core::WorkerCost> costs);
  void SendParts(const core::Plan& plan, const Context& context);
  void EmitSteps(StepStatistics::Summaries& done, Commands& out) const;

  std::optional<GroupKey> key_;
  uint32_t model_ = 0;
  uint64_t next_sequence_ = 0;
  bool formed_once_ = false;
  bool complete_ = false;
  // Some member drains.
  bool some_drain_ = false;
  absl::Time give_up_at_ = absl::InfiniteFuture();
  MemberHistory history_;
  GroupCapacity capacity_;
  // Of this epoch: the shortest step, and the reports that it is the least of.
  std::optional<absl::Duration> shortest_step_;
  int64_t steps_timed_ = 0;
  // The decision whose duration Decided reports.
  core::Plan last_plan_;

  // Scratch of a report: which of its requests are placed on its rank, by their index in its lists.
  struct PlacedHere {
    std::vector<char> tokens, finished, rejected, preempted;
  };
  PlacedHere placed_here_;
  std::vector<core::RequestId> finished_ids_, rejected_ids_;
};

}  // namespace bfio::router

#endif  // BFIO_ROUTER_GROUP_GROUP_H_
