// One group of workers as a state machine without I/O: members, epochs, plans and deadlines. Events and the
// time go in, commands (commands.h) come out. It drives the group's scheduler in core::Cluster, so an epoch
// of members and an epoch of the scheduler's accounts are the same. Two kinds: BarrierGroup, whose ranks meet
// in a collective at every step, and IndependentGroup, whose ranks step independently.
//
//   gathering --enough members--> forming --all ready--> serving --a member lost, joined, left--> forming ...
//
// After a restart of the router the first epoch waits for the workers that hold requests, but no longer than
// restart_settle. A rank that is silent while the others report is left out of the next epoch; it can rejoin
// with a new connection. A member's reports count only for the epoch that its last EpochReady named; after
// its CloseMember its messages are ignored. A group that has no members and no placed requests may get
// another key. Borrows the cluster and the request book. Threads: one; no locks, no clock. Deterministic.
#pragma once

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
#include "router/group/step_statistics.h"
#include "router/group/worker_messages.h"
#include "router/requests/request_book.h"

namespace bfio::router {

struct GroupOptions {
  core::GroupIndex index = 0;
  std::string name;
  core::GroupKind kind = core::GroupKind::kBarrier;
  // Number of members that the first epoch waits for.
  int32_t workers = 1;
  core::PlanMode plan_mode = core::PlanMode::kPipelined;
  absl::Duration step_timeout = absl::Seconds(10);
  absl::Duration form_timeout = absl::Seconds(10);
  // How long after a step's first report a decision waits for the others before it plans without them.
  absl::Duration report_timeout = absl::Milliseconds(200);
  absl::Duration restart_settle = absl::Seconds(5);
  // How long a worker without a router keeps its requests.
  absl::Duration retain = absl::Seconds(30);
  // Bound of the announced requests of all members of all groups together.
  int64_t max_announced_bytes = int64_t{256} << 20;
  // Identifies this run of the router (common/base/router_instance.h); above 0.
  uint64_t instance = 1;
};

// A member as operators see it.
struct MemberView {
  MemberId id = 0;
  std::string worker_id;
  std::string engine;
  // WorkerHello::model.
  std::string model;
  // WorkerHello::kv_engine_id.
  std::string kv_engine_id;
  int32_t slots = 0;
  int64_t kv_tokens = 0;
  double service_s = 0;
  bool draining = false;
  // The member's rank in the open epoch; empty when it has none.
  std::optional<core::WorkerIndex> rank;
  WorkerTelemetry telemetry;
};

class Group {
 public:
  static std::unique_ptr<Group> Make(const GroupOptions& options, core::Cluster* cluster, RequestBook* book);
  virtual ~Group() = default;

  // --- what members have in common ---

  // Key of the present members, or of the last ones; empty before the first member.
  const std::optional<GroupKey>& key() const { return key_; }
  // The number of the key's model (ModelBook); 0 without a key.
  uint32_t model() const { return model_; }
  // True when workers of that key can be members.
  bool Takes(const GroupKey& key) const {
    return key.hands_over == hands_over() && (!key_ || *key_ == key || free());
  }
  // REQUIRES: Takes(key).
  void SetKey(const GroupKey& key, uint32_t model);

  // --- events ---

  // ALREADY_EXISTS, FAILED_PRECONDITION or UNAVAILABLE when the worker cannot be a member. Ignores its key.
  absl::Status CheckHello(const WorkerHello& hello, absl::Time now) const;
  // Refuses what CheckHello refuses, with CloseMember. REQUIRES: the hello's key is key().
  void OnHello(MemberId member, WorkerHello hello, absl::Time now, Commands& out);
  // `elsewhere_bytes`: announced to other groups, with which this one shares the bound.
  void OnAnnouncement(MemberId member, Announcement announcement, absl::Time now, Commands& out,
                      int64_t elsewhere_bytes = 0);
  // Bytes that members have announced for an epoch that has not opened yet.
  int64_t announced_bytes() const;
  void OnEpochReady(MemberId member, EpochReady ready, absl::Time now, Commands& out);
  void OnReport(MemberId member, const StepReport& report, absl::Time now, Commands& out);
  // The worker requests to leave: it gets no new requests, and is released when its last one has ended.
  void OnLeave(MemberId member, absl::string_view reason, absl::Time now, Commands& out);
  // The member's connection is closed.
  void OnGone(MemberId member, absl::Time now, Commands& out);
  // Removes a member that has violated the protocol.
  void Expel(MemberId member, const absl::Status& why, absl::Time now, Commands& out);
  // The worker gets no new requests, and is released when its last one has ended. NOT_FOUND.
  absl::Status Drain(absl::string_view worker_id, absl::Time now, Commands& out);
  // Lets the first epoch form with the members that are present. REQUIRES: gathering().
  void FormWithFewer(absl::Time now, Commands& out);
  // Ends draining: the worker gets new requests again. NOT_FOUND; FAILED_PRECONDITION when it is not
  // draining, or when the worker itself requested to leave.
  absl::Status Undrain(absl::string_view worker_id, Commands& out);
  // Acts on deadlines that have passed.
  void OnTimer(absl::Time now, Commands& out);
  absl::Time next_deadline() const;

  // --- decisions ---

  // Makes at most one plan. True when it made one: the caller then calls Decided, and Decide again.
  bool Decide(absl::Time now, Commands& out);
  // Records the duration of the last Decide, which the caller measures.
  void Decided(absl::Duration took, Commands& out);
  // Called when no decision is due: releases drained members, and emits the last steps of a parked group.
  void Settle(absl::Time now, Commands& out);

  // --- views ---

  const GroupOptions& options() const { return options_; }
  bool serving() const { return phase_ == Phase::kServing; }
  bool serves_clients() const { return serving() && !hands_over(); }
  // Its ranks compute prompts for other groups.
  bool hands_over() const { return options_.kind == core::GroupKind::kPrefill; }
  // As in WorkerHello, of its ranks.
  bool in_parallel() const { return !ranks_.empty() && ranks_.front()->hello.in_parallel; }
  bool computes_none() const { return !ranks_.empty() && ranks_.front()->hello.computes_none; }
  // The first epoch is waiting for more members.
  bool gathering() const { return phase_ == Phase::kGathering && !members_.empty(); }
  bool formed_once() const { return formed_once_; }
  // The group serves, or will serve again with its present members.
  bool carries_on() const { return formed_once_ && !members_.empty(); }
  // The group has served with options().workers members at least once.
  bool complete() const { return complete_; }
  uint64_t epoch() const { return epoch_; }
  int32_t size() const { return static_cast<int32_t>(members_.size()); }
  bool empty() const { return members_.empty(); }
  bool Has(MemberId member) const { return members_.contains(member); }
  // True before the first epoch while a member holds requests of an earlier router.
  bool ExpectsAnnouncements() const;
  // The members in the order of arrival.
  std::vector<MemberView> Members() const;
  // For admission; no ranks before its first epoch.
  const GroupCapacity& capacity() const { return capacity_; }
  // Lower bound of the duration of a step in this epoch; empty until enough steps were timed.
  std::optional<absl::Duration> shortest_step() const;
  const StepStatistics& steps() const { return steps_; }
  // Predicted over measured time of recent steps; empty: not known.
  std::optional<double> predicted_ratio() const { return predicted_ratio_; }

  // The member with that worker_id; empty when there is none.
  std::optional<MemberId> FindWorker(absl::string_view worker_id) const;
  // The member that is an older connection of the same worker process, which is therefore dead; empty when
  // there is none.
  std::optional<MemberId> FindSuperseded(const WorkerHello& hello) const;
  // True when a worker of that id was draining when its connection broke.
  bool RemembersDraining(const std::string& worker_id) const { return history_.WasDraining(worker_id); }

  // The group serves, or is expected to serve again: it has served before and has not been given up.
  bool returns() const { return returns_; }
  // When an empty group should give up its placed requests and its capacity, provided that another group
  // serves. Infinite when it has members or has never served.
  absl::Time give_up_at() const { return give_up_at_; }
  // Gives up the placed requests, so that other groups can run them: each is lost (RequestLost). The group no
  // longer returns() until it has members again. REQUIRES: empty().
  void GiveUp(absl::Time now, Commands& out);

 protected:
  enum class Phase {
    kGathering,  // too few workers; no deadline
    kSettling,   // an epoch forms at the deadline; further changes until then join it
    kForming,    // EpochOffers are sent; all EpochReady messages are due at the deadline
    kServing,
  };
  // The event that is being handled: its time, and where its commands go.
  struct Context {
    absl::Time now;
    Commands& out;
  };
  // Joins come in bursts, and when several members fail at once their connections break one by one. A short
  // delay lets one epoch cover all of them.
  static constexpr absl::Duration kSettleAfterJoin = absl::Milliseconds(100);
  // The delay after a join doubles with each new worker that has recently left while an epoch formed with it.
  // Forming stops decoding (for seconds with NCCL), and a worker that crashes at startup reconnects at once.
  static constexpr absl::Duration kLongestSettleAfterJoin = absl::Seconds(30);
  static constexpr absl::Duration kSettleAfterLoss = absl::Milliseconds(20);
  // Delay after a failed attempt to form, so that a persistent cause makes no tight loop.
  static constexpr absl::Duration kSettleAfterFailure = absl::Milliseconds(500);
  // Time that a member may take to answer beyond form_timeout.
  static constexpr absl::Duration kFormGrace = absl::Seconds(1);

  Group(const GroupOptions& options, core::Cluster* cluster, RequestBook* book);

  // --- differences between the kinds ---

  // Whether a worker can be in this kind of group. FAILED_PRECONDITION.
  virtual absl::Status CheckKind(const WorkerHello& hello) const = 0;
  // Sets the ranks and the communicator in an offer of the epoch that is forming.
  virtual void FillOffer(const Member& member, EpochOffer& offer) const = 0;
  // How long the ranks have to answer an EpochOffer that is sent now.
  virtual absl::Duration FormTime() const = 0;
  // All ranks have answered, and at least one could not form.
  virtual void OnFormingFailed(const Context& context) = 0;
  // The member has not answered in time.
  virtual void OnLateToForm(Member& member, const absl::Status& why, const Context& context) = 0;
  // Called before an epoch forms. False: not yet; deadline_ has the time of the next attempt.
  virtual bool PrepareToForm(const Context& context) { return true; }
  // An epoch is forming: its steps count from 1.
  virtual void ResetProgress() {}
  // A member of the epoch reports that it cannot reach these ranks.
  virtual void OnMissing(Member& member, absl::Span<const uint32_t> missing) {}
  // The open epoch ends because a member's barrier failed.
  virtual void OnBarrierLost(const Context& context) {}
  // The scheduler has applied a report of this member.
  virtual void OnProgress(Member& member, const StepReport& report, const Context& context) = 0;
  virtual void RecordStep(core::WorkerIndex rank, const StepReport& report, absl::Time now,
                          StepStatistics::Summaries& done) = 0;
  virtual void RecordDecision(const core::Plan& plan, absl::Duration took,
                              StepStatistics::Summaries& done) = 0;
  virtual void OnOpened(absl::Time now) {}
  virtual void OnClosed() {}
  // A plan may be due, but is better made later, at step_deadline().
  virtual bool PutsOffPlan(absl::Time now) const { return false; }
  // Whether the decision should plan without the missing reports; called once per decision.
  virtual bool TakeForce() { return false; }
  // The apply_step of a rank's part of the plan; 0: the rank gets no part.
  virtual int64_t ApplyStepOf(const core::Plan& plan, core::WorkerIndex rank) const = 0;
  virtual void OnPartSent(Member& member, absl::Time now) {}
  virtual void OnPlanSent(absl::Time now) {}
  // Handles deadlines of steps, other than those of single members.
  virtual void OnStepTimer(const Context& context) {}
  virtual absl::Time step_deadline() const { return absl::InfiniteFuture(); }

  // --- shared by the kinds ---

  const core::Scheduler& scheduler() const { return *cluster_->group(options_.index); }
  Member* Find(MemberId id);
  // True when no worker has a free slot.
  bool Saturated() const;
  bool AnyBehind() const;
  // Cuts off the ranks whose report has been due for `limit` or longer.
  void ExpelSilent(absl::Duration limit, const Context& context);
  // Cuts off a member that keeps the group from forming, and refuses its worker_id for a while.
  void Punish(Member& member, const absl::Status& why, const Context& context);
  void CutOff(Member& member, const absl::Status& why, const Context& context);
  // Schedules the forming of a new epoch `delay` from now; closes the present one if `close`.
  void Reform(absl::Duration delay, bool close, const Context& context);
  // A member's barrier failed, or no rank has made progress.
  void OnBarrierError(Member& member, absl::string_view why, absl::Span<const uint32_t> missing,
                      const Context& context);
  template <typename... Parts>
  void Log(Commands& out, LogLine::Level level, const Parts&... parts) const {
    out.push_back(
        LogLine{level, absl::StrCat("group ", options_.name, ": ", parts...), options_.name, "", epoch_});
  }
  // A log line about a worker; its text begins with the worker's id.
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
  // Members of the open epoch, or of the one that is forming, by rank.
  std::vector<Member*> ranks_;
  StepStatistics steps_;

 private:
  // --- members (group.cc) ---

  // No members, and no placed requests.
  bool free() const { return members_.empty() && scheduler().placed() == 0; }
  absl::Duration SettleAfterJoin(absl::Time now) const;
  void BeginDraining(Member& member);
  bool MayLeave(const Member& member) const;
  // Notifies a drained member to exit; the others re-form without it.
  void Release(Member& member, const Context& context);
  // Removes a member; re-forms if it belonged to the epoch.
  void Remove(MemberId id, const absl::Status& why, const Context& context);
  // The members in the order of arrival.
  std::vector<Member*> ByArrival() const;
  // The member's rank in the open epoch; empty when it has none.
  std::optional<core::WorkerIndex> RankOf(const Member& member) const;

  // --- epochs (group_epochs.cc) ---

  void BeginForming(const Context& context);
  void SendOffer(const Member& member, Commands& out) const;
  void ExpelLate(const Context& context);
  void FinishForming(const Context& context);
  void CloseEpoch(Commands& out);
  // Opens the epoch in the scheduler.
  void OpenEpoch(const Context& context);
  core::EpochMember EpochMemberOf(Member& member, Commands& out);
  // Loses all placed requests. REQUIRES: empty().
  void LosePlaced(Commands& out);
  void LoseRequests(absl::Span<const core::RequestId> displaced, Commands& out) const;
  // Ranks whose counts of generated tokens differ from what the router has received.
  std::vector<Member*> AuditResidents();

  // --- steps (group_steps.cc) ---

  // Finds which of the report's requests are placed on that rank; the others have been cancelled meanwhile.
  // Called before the scheduler applies the report.
  void FindPlaced(core::WorkerIndex rank, const StepReport& report);
  absl::Status ApplyReport(core::WorkerIndex rank, const StepReport& report, Commands& out);
  // Emits the commands about the requests that FindPlaced found.
  void EmitRequests(const StepReport& report, Commands& out) const;
  void TakeTelemetry(Member& member, const StepReport& report, Commands& out);
  // The rank's own fit; that of the group's steps where it shows padding or prices, which no rank can see,
  // unless the ranks differ in speed.
  const std::optional<GroupCost>& CostOf(const Member& member) const;
  void ApplyCost(const Member& member);
  // Passes to the scheduler the measured step costs of the present epoch's workers, where they have changed.
  void UpdateTimes(Commands& out);
  // Sets the mean service time of a request on each rank; true when one has changed. `costs` is empty before
  // the scheduler has these ranks.
  bool SetServiceTimes(absl::Span<const core::WorkerCost> costs);
  void SendParts(const core::Plan& plan, const Context& context);
  void EmitSteps(StepStatistics::Summaries& done, Commands& out) const;

  std::optional<GroupKey> key_;
  uint32_t model_ = 0;
  uint64_t next_sequence_ = 0;
  bool formed_once_ = false;
  bool complete_ = false;
  bool returns_ = false;
  // At least one member is draining.
  bool some_drain_ = false;
  absl::Time give_up_at_ = absl::InfiniteFuture();
  MemberHistory history_;
  GroupCapacity capacity_;
  // Shortest step of this epoch so far, and the number of reports that it is the minimum of.
  std::optional<absl::Duration> shortest_step_;
  int64_t steps_timed_ = 0;
  int64_t fit_version_ = 0;
  std::optional<double> predicted_ratio_;
  // The plan whose duration Decided reports.
  core::Plan last_plan_;

  // Scratch space of a report: whether each entry of its lists is placed on the reporting rank.
  struct PlacedHere {
    std::vector<char> tokens, finished, rejected, preempted;
  };
  PlacedHere placed_here_;
  std::vector<core::RequestId> finished_ids_, rejected_ids_;
};

}  // namespace bfio::router
