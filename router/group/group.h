// Membership: which workers are attached, which of them form the present epoch, and how the next one comes
// about.
//
//   gathering --enough workers--> forming --all ready--> serving --a member lost, joined, left--> forming ...
//
// After a restart of the router its workers come back one after another, with requests: the first epoch waits
// for all of them, but not for ever (restart_settle).
//
// Ranks that are not coupled (RouterOptions::coupled) share epochs, whose members are told that each is
// alone. When the membership changes they all end their steps and go on together, as soon as the slowest has
// ended its own; one that takes several times as long as any has taken so far is left out.
//
// Purpose: everything about epochs in one place; the decision loop forwards worker events and time, and is
// told through the Listener when an epoch opens or closes. A rank that is silent while the others report, be
// it stopped or cut off, is left out of the next epoch and comes back by a new stream. Owned by the decision
// thread; not thread-safe; time is handed in. Fencing: a member's reports count only under the epoch it last
// said it was ready for; a lost member's stream is closed, so it can speak for nothing any more.
#ifndef BFIO_ROUTER_GROUP_GROUP_H_
#define BFIO_ROUTER_GROUP_GROUP_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "bfio/v1/worker.pb.h"
#include "router/app/options.h"
#include "router/core/scheduler/scheduler.h"
#include "router/group/worker_figures.h"
#include "router/worker_link/worker_session.h"

namespace bfio::router {

struct Member {
  std::shared_ptr<WorkerSession> session;
  v1::Hello hello;
  // Order of arrival; ranks follow it, so survivors keep theirs in order.
  uint64_t sequence = 0;
  // Rank in the last epoch it was ready for, and that epoch: what its reports are counted under.
  std::optional<core::WorkerIndex> rank;
  uint64_t spoken_epoch = 0;
  // Rank in the epoch being formed.
  core::WorkerIndex next_rank = 0;
  // Its newest report in the present epoch, and since when others have been further; not coupled: since when
  // its next report is owed.
  uint64_t reported_step = 0;
  absl::Time behind_since = absl::InfiniteFuture();
  // Not coupled: the longest that a report was owed; 0 before the first.
  absl::Duration longest_step;
  // It waited for others in vain; others waited for it.
  bool blames = false, blamed = false;
  // Has answered the Epoch being formed; with success.
  bool answered = false;
  bool ready = false;
  // Takes no new requests and leaves when it has none.
  bool draining = false;
  std::string offer;
  std::vector<core::ResidentRequest> resident;
  WorkerFigures figures;
  // By `resident`: tokens that the placement has made.
  std::vector<uint32_t> generated;
  // It holds requests of another router, which it announces before it is ready: until an epoch has opened
  // with it.
  bool survivor = false;
  std::vector<v1::HeldRequest> announced;
  int64_t announced_bytes = 0;
};

class Group {
 public:
  class Listener {
   public:
    virtual ~Listener() = default;
    // The members, by rank, of an epoch that is complete and waits for its first plan.
    virtual void OnEpochOpen(uint64_t epoch, const std::vector<Member*>& ranks) = 0;
    // No plans any more until the next OnEpochOpen. Reports of members may still come.
    virtual void OnEpochClosed() = 0;
  };

  // `instance` is this router's life, above 0.
  Group(const RouterOptions& options, uint64_t instance, Listener* listener)
      : options_(options), instance_(instance), listener_(listener) {}

  void OnHello(std::shared_ptr<WorkerSession> session, const v1::Hello& hello, absl::Time now);
  void OnAnnouncement(Member& member, const v1::Announcement& announcement);
  void OnEpochReady(Member& member, const v1::EpochReady& ready, absl::Time now);
  // A report of its epoch, in order; `idle`: it waits for a plan now.
  void OnReport(Member& member, uint64_t step, bool idle, absl::Time now);
  // It has been sent a plan.
  void OnPlanned(Member& member, absl::Time now);
  // The member says that its barrier failed, or contradicts the protocol.
  // `missing`: the ranks that it blames.
  void OnBarrierError(Member& member, const std::string& why, absl::Span<const uint32_t> missing,
                      absl::Time now);
  // Its stream is gone.
  void OnGone(const WorkerSession* session, absl::Time now);
  // Cuts a member off.
  void Expel(Member& member, grpc::Status status, absl::Time now);
  // A drained member is told to end, and the others re-form without it.
  void Release(Member& member, absl::Time now);

  // Acts on deadlines that have passed.
  void OnTimer(absl::Time now);
  absl::Time next_deadline() const;

  Member* Find(const WorkerSession* session);
  Member* FindById(const std::string& worker_id);
  // Null when no epoch is open or the rank is out of range.
  Member* ByRank(core::WorkerIndex rank);

  bool serving() const { return phase_ == Phase::kServing; }
  // Before the first epoch, with somebody who brings requests of an earlier router.
  bool ExpectsAnnouncements() const;
  uint64_t epoch() const { return epoch_; }
  // All attached workers in the order they came.
  std::vector<Member*> members();
  const std::vector<Member*>& ranks() const { return ranks_; }

 private:
  enum class Phase {
    kGathering,  // too few workers; no deadline
    kSettling,   // an epoch is to be formed at deadline_: other changes may come along until then
    kForming,    // Epoch sent; EpochReady of all is due at deadline_
    kServing,
  };

  // Cuts off the ranks that are `limit` or longer behind the others' reports.
  void ExpelSilent(absl::Duration limit, absl::Time now);
  bool AnyBehind() const;
  // Notes whom a rank of the epoch blames.
  void OnMissing(Member& member, absl::Span<const uint32_t> missing);
  // Whom the others do not reach is left out for a while. False: nobody is blamed.
  bool PunishBlamed(absl::Time now);
  // Schedules the forming of a new epoch `delay` from now and closes the present one if `close`.
  void Reform(absl::Duration delay, bool close, absl::Time now);
  void BeginForming(absl::Time now);
  // How long the ranks have to answer an Epoch sent now.
  absl::Duration FormTime() const;
  void FinishForming(absl::Time now);
  // Expels a member that keeps the group from forming, and refuses it for a while.
  void Punish(Member& member, grpc::Status status, absl::Time now);
  // All have answered, not all could form.
  void OnFormingFailed(absl::Time now);
  // Forgets a member; re-forms if it belonged to the epoch.
  void Remove(const WorkerSession* session, absl::Time now);

  const RouterOptions& options_;
  const uint64_t instance_;
  Listener* const listener_;
  Phase phase_ = Phase::kGathering;
  absl::Time deadline_ = absl::InfiniteFuture();
  // After a barrier's failure: until when the ranks may say so; whoever has not by then is left out.
  absl::Time silence_end_ = absl::InfinitePast();
  uint64_t epoch_ = 0;
  // The newest step of the epoch that some rank has reported.
  uint64_t newest_step_ = 0;
  uint64_t next_sequence_ = 0;
  bool formed_once_ = false;
  // Attempts to form in a row that failed though all answered.
  int failures_ = 0;
  // By worker_id: how often it kept the group from forming, and until when it is refused therefore.
  struct Penalty {
    int count = 0;
    absl::Time until;
  };
  std::map<std::string, Penalty> penalties_;
  // Drained workers whose streams broke before they were released: which router each had followed when it
  // came, by worker_id.
  std::map<std::string, uint64_t> draining_;
  std::map<const WorkerSession*, std::unique_ptr<Member>> members_;
  std::vector<Member*> ranks_;  // of the open epoch, or of the one being formed
};

}  // namespace bfio::router

#endif  // BFIO_ROUTER_GROUP_GROUP_H_
