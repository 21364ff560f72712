#include "router/group/group.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/spdlog.h"
#include "common/net/router_instance.h"
#include "router/worker_link/convert.h"

namespace bfio::router {
namespace {

// Joins come in bursts, and of a group that loses several members at once each stream breaks by itself:
// waiting a little makes one epoch of them.
constexpr absl::Duration kSettleAfterJoin = absl::Milliseconds(100);
constexpr absl::Duration kSettleAfterLoss = absl::Milliseconds(20);
// After a failed attempt to form, so that a persistent cause does not spin.
constexpr absl::Duration kSettleAfterFailure = absl::Milliseconds(500);
// A member that keeps the others from forming is refused for this long, doubled each time.
constexpr absl::Duration kFirstPenalty = absl::Seconds(1);
constexpr absl::Duration kLastPenalty = absl::Minutes(2);
constexpr size_t kMaxPenalties = 1024;
constexpr size_t kMaxDraining = 1024;
// The ranks of a barrier that fails learn so from each other at once, and say so at once.
constexpr absl::Duration kSilenceGrace = absl::Milliseconds(100);
constexpr absl::Duration kSilencePoll = absl::Milliseconds(10);
// What a member's answer may take beyond the time it has for forming.
constexpr absl::Duration kFormGrace = absl::Seconds(1);
// Ranks that are not coupled meet nobody when they form, they end a step: they have this long, and so many
// times the longest step there has been.
constexpr absl::Duration kLeastFormTime = absl::Seconds(2);
constexpr int kFormSteps = 4;

grpc::Status Refused(const absl::Status& status) {
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()));
}

}  // namespace

void Group::OnHello(std::shared_ptr<WorkerSession> session, const v1::Hello& hello, absl::Time now) {
  absl::Status status = CheckHello(hello);
  if (status.ok() && FindById(hello.worker_id()) != nullptr) {
    status = absl::AlreadyExistsError(absl::StrCat("worker_id ", hello.worker_id(), " is attached already"));
  }
  if (status.ok() && !options_.coupled && absl::StrContains(hello.barrier(), "+tp:")) {
    status = absl::FailedPreconditionError(
        "ranks that share a model's MLP out (--mlp=tp) meet in every step: start the router with "
        "--coupling=barrier");
  }
  if (status.ok() && !options_.coupled && !hello.steps_alone()) {
    status = absl::FailedPreconditionError(
        "this router's workers step by themselves (--coupling=none), and this worker is of a version that "
        "cannot");
  }
  if (status.ok() && options_.coupled && !members_.empty() &&
      members_.begin()->second->hello.barrier() != hello.barrier()) {
    status = absl::FailedPreconditionError(absl::StrCat(
        "the group meets by barrier ", members_.begin()->second->hello.barrier(), ", not ", hello.barrier()));
  }
  const auto penalty = penalties_.find(hello.worker_id());
  if (status.ok() && penalty != penalties_.end() && now < penalty->second.until) {
    status = absl::UnavailableError("this worker has kept the group from forming; come back later");
  }
  if (status.ok() && !MayFollow(hello.router_instance(), instance_))
    status = absl::UnavailableError("this worker has followed a router that was elected later");
  if (!status.ok()) {
    spdlog::warn("worker at {} refused: {}", session->peer(), std::string(status.message()));
    session->Close(Refused(status));
    return;
  }
  auto member = std::make_unique<Member>();
  member->session = session;
  member->hello = hello;
  member->sequence = next_sequence_++;
  member->offer = hello.communicator_offer();
  member->survivor = hello.router_instance() != 0 && hello.router_instance() != instance_;
  // The same process, whose stream broke; another of that name starts anew.
  if (const auto drained = draining_.find(hello.worker_id()); drained != draining_.end()) {
    member->draining = hello.router_instance() != 0 &&
                       (hello.router_instance() == instance_ || hello.router_instance() == drained->second);
    draining_.erase(drained);
  }
  const bool survivor = member->survivor;
  members_.emplace(session.get(), std::move(member));
  spdlog::info("worker {} attached ({} slots, {} KV tokens, engine {}); {} of {}", hello.worker_id(),
               hello.slots(), hello.kv_tokens(), hello.engine(), members_.size(), options_.workers);
  if (formed_once_) {
    Reform(kSettleAfterJoin, false, now);
  } else if (static_cast<int64_t>(members_.size()) >= options_.workers) {
    Reform(absl::ZeroDuration(), false, now);
  } else if (survivor) {
    Reform(options_.restart_settle, false, now);
  }
}

void Group::OnAnnouncement(Member& member, const v1::Announcement& announcement) {
  if (phase_ != Phase::kForming || announcement.epoch() != epoch_ || member.answered || !member.survivor) {
    return;
  }
  for (const v1::HeldRequest& held : announcement.requests()) {
    const auto bytes = static_cast<int64_t>(held.ByteSizeLong());
    if (member.announced_bytes + bytes > options_.replay_budget_bytes) {
      // What is not taken over, the worker is told to drop: it can do nothing about the bound.
      spdlog::warn("worker {} announces more than is kept (--replay_budget_mb): the rest is dropped",
                   member.hello.worker_id());
      member.announced_bytes = options_.replay_budget_bytes;
      return;
    }
    member.announced_bytes += bytes;
    member.announced.push_back(held);
  }
}

void Group::OnEpochReady(Member& member, const v1::EpochReady& ready, absl::Time now) {
  member.offer = ready.communicator_offer();
  if (phase_ != Phase::kForming || ready.epoch() != epoch_ || member.answered) return;
  member.answered = true;
  member.ready = ready.error().empty();
  if (member.ready) {
    member.spoken_epoch = epoch_;
    member.hello.clear_active();  // dropped by now: Epoch.cancellations named them
    member.resident.clear();
    member.generated.clear();
    for (const v1::ActiveRequest& active : ready.active()) {
      member.resident.push_back({active.handle(), static_cast<int64_t>(active.kv_tokens())});
      member.generated.push_back(active.generated_tokens());
    }
  } else {
    spdlog::warn("worker {} could not form epoch {}: {}", member.hello.worker_id(), epoch_, ready.error());
    OnMissing(member, ready.missing_ranks());
  }
  // One failure is usually another's fault: only when all have answered is it known who never does.
  const auto all = [&](bool Member::*flag) {
    return std::all_of(ranks_.begin(), ranks_.end(), [&](const Member* m) { return m->*flag; });
  };
  if (!all(&Member::answered)) return;
  if (all(&Member::ready)) {
    FinishForming(now);
  } else {
    OnFormingFailed(now);
  }
}

void Group::OnFormingFailed(absl::Time now) {
  if (!options_.coupled) {  // each by itself
    std::vector<Member*> failed;
    for (Member* member : ranks_) {
      if (!member->ready) failed.push_back(member);
    }
    for (Member* member : failed)
      Punish(*member, grpc::Status(grpc::StatusCode::UNAVAILABLE, "it cannot form an epoch"), now);
    return;
  }
  if (PunishBlamed(now)) return;
  // Once is bad luck. From then on the one that was never part of a working group is the likeliest cause (it
  // may reach the router but not the others), or else the newest.
  if (++failures_ > 1 && ranks_.size() > 1) {
    Member* suspect = ranks_.back();
    for (Member* member : ranks_) {
      if (!member->rank) suspect = member;
    }
    Punish(*suspect, grpc::Status(grpc::StatusCode::UNAVAILABLE, "the group does not form with this worker"),
           now);
    return;
  }
  Reform(kSettleAfterFailure, false, now);
}

void Group::Punish(Member& member, grpc::Status status, absl::Time now) {
  if (penalties_.size() >= kMaxPenalties) penalties_.clear();
  Penalty& penalty = penalties_[member.hello.worker_id()];
  penalty.until = now + std::min(kLastPenalty, kFirstPenalty * (1 << std::min(penalty.count++, 10)));
  Expel(member, std::move(status), now);
}

void Group::OnReport(Member& member, uint64_t step, bool idle, absl::Time now) {
  // A late report of the epoch before says nothing about this one.
  if (member.spoken_epoch != epoch_) return;
  member.reported_step = step;
  if (!options_.coupled) {
    if (member.behind_since != absl::InfiniteFuture())
      member.longest_step = std::max(member.longest_step, now - member.behind_since);
    member.behind_since = idle ? absl::InfiniteFuture() : now;
    return;
  }
  newest_step_ = std::max(newest_step_, step);
  for (Member* rank : ranks_) {
    if (rank->reported_step == newest_step_) {
      rank->behind_since = absl::InfiniteFuture();
    } else if (rank == &member || rank->behind_since == absl::InfiniteFuture()) {
      rank->behind_since = now;
    }
  }
}

void Group::OnPlanned(Member& member, absl::Time now) {
  if (!options_.coupled) member.behind_since = std::min(member.behind_since, now);
}

bool Group::AnyBehind() const {
  return std::any_of(ranks_.begin(), ranks_.end(),
                     [](const Member* rank) { return rank->behind_since != absl::InfiniteFuture(); });
}

void Group::ExpelSilent(absl::Duration limit, absl::Time now) {
  std::vector<Member*> silent;
  for (Member* rank : ranks_) {
    if (now - rank->behind_since >= limit) silent.push_back(rank);
  }
  for (Member* rank : silent) {
    Expel(*rank, grpc::Status(grpc::StatusCode::DEADLINE_EXCEEDED, "no step report in time"), now);
  }
}

absl::Time Group::next_deadline() const {
  absl::Time next = deadline_;
  if (phase_ != Phase::kServing) return next;
  for (const Member* rank : ranks_) next = std::min(next, rank->behind_since + options_.step_timeout);
  return next;
}

void Group::OnMissing(Member& member, absl::Span<const uint32_t> missing) {
  if (missing.empty() || !options_.coupled) return;
  std::vector<Member*> blamed;
  for (Member* rank : ranks_) {
    if (rank == &member) continue;
    if (std::find(missing.begin(), missing.end(), static_cast<uint32_t>(rank->next_rank)) != missing.end())
      blamed.push_back(rank);
  }
  // One that reaches hardly anybody is itself the one that is cut off.
  if (2 * blamed.size() > ranks_.size()) {
    member.blamed = true;
    return;
  }
  member.blames = true;
  for (Member* rank : blamed) rank->blamed = true;
}

bool Group::PunishBlamed(absl::Time now) {
  std::vector<Member*> culprits;
  for (Member* rank : ranks_) {
    // In a tree a rank is late because it waited for another.
    if (rank->blamed && !rank->blames) culprits.push_back(rank);
    rank->blamed = rank->blames = false;
  }
  if (culprits.size() == ranks_.size()) return false;
  for (Member* rank : culprits) {
    Punish(*rank, grpc::Status(grpc::StatusCode::UNAVAILABLE, "other ranks do not reach this one"), now);
  }
  return !culprits.empty();
}

void Group::OnBarrierError(Member& member, const std::string& why, absl::Span<const uint32_t> missing,
                           absl::Time now) {
  if (member.spoken_epoch == epoch_) OnMissing(member, missing);
  if (phase_ != Phase::kServing || member.spoken_epoch != epoch_) return;
  spdlog::warn("worker {} lost the barrier of epoch {}: {}", member.hello.worker_id(), epoch_, why);
  // Nobody else has met it: their silence says nothing.
  if (options_.coupled) silence_end_ = now + kSilenceGrace;
  Reform(kSettleAfterLoss, true, now);
}

void Group::OnGone(const WorkerSession* session, absl::Time now) {
  if (const Member* member = Find(session); member != nullptr) {
    spdlog::warn("worker {} is gone", member->hello.worker_id());
  }
  Remove(session, now);
}

void Group::Expel(Member& member, grpc::Status status, absl::Time now) {
  spdlog::warn("worker {} is cut off: {}", member.hello.worker_id(), status.error_message());
  const std::shared_ptr<WorkerSession> session = member.session;
  Remove(session.get(), now);
  session->Close(std::move(status));
}

void Group::Release(Member& member, absl::Time now) {
  spdlog::info("worker {} is drained and leaves", member.hello.worker_id());
  const std::shared_ptr<WorkerSession> session = member.session;
  v1::RouterMessage message;
  message.mutable_shutdown()->set_reason("drained");
  session->Send(std::move(message));
  member.draining = false;
  Remove(session.get(), now);
  session->Close(grpc::Status::OK);
}

void Group::Remove(const WorkerSession* session, absl::Time now) {
  const auto it = members_.find(session);
  if (it == members_.end()) return;
  const Member& member = *it->second;
  if (member.draining && draining_.size() < kMaxDraining) {
    draining_[member.hello.worker_id()] = member.hello.router_instance();
  }
  const bool ranked = std::find(ranks_.begin(), ranks_.end(), &member) != ranks_.end();
  // ranks_ keeps no pointer to a member that is gone, whatever the phase.
  ranks_.erase(std::remove(ranks_.begin(), ranks_.end(), it->second.get()), ranks_.end());
  members_.erase(it);
  if (ranked || members_.empty()) Reform(kSettleAfterLoss, true, now);
}

void Group::Reform(absl::Duration delay, bool close, absl::Time now) {
  if (close && phase_ == Phase::kServing) {
    listener_->OnEpochClosed();
    phase_ = Phase::kGathering;
  }
  if (members_.empty()) {
    if (phase_ == Phase::kServing) listener_->OnEpochClosed();
    phase_ = Phase::kGathering;
    deadline_ = absl::InfiniteFuture();
    return;
  }
  // An epoch that serves goes on serving while newcomers settle.
  const absl::Time when = now + delay;
  if (phase_ == Phase::kForming || phase_ == Phase::kGathering) {
    phase_ = Phase::kSettling;
    deadline_ = when;
  } else {
    deadline_ = std::min(deadline_, when);
  }
}

void Group::OnTimer(absl::Time now) {
  if (phase_ == Phase::kServing) ExpelSilent(options_.step_timeout, now);
  if (now < deadline_) return;
  if (phase_ == Phase::kForming) {
    // Whoever has not answered is stuck: the others go on without it.
    std::vector<Member*> late;
    for (Member* member : ranks_) {
      if (!member->answered) late.push_back(member);
    }
    for (Member* member : late) {
      const grpc::Status status(grpc::StatusCode::DEADLINE_EXCEEDED, "no EpochReady in time");
      // One that has served may be in a step that is longer than any before, and may come back at once.
      if (!options_.coupled && member->rank) {
        Expel(*member, status, now);
      } else {
        Punish(*member, status, now);
      }
    }
    return;
  }
  if (now < silence_end_ && AnyBehind()) {
    deadline_ = std::min(now + kSilencePoll, silence_end_);
    return;
  }
  // Asked to form with a rank that does not answer, the others would wait for it all of form_timeout.
  if (std::exchange(silence_end_, absl::InfinitePast()) != absl::InfinitePast())
    ExpelSilent(absl::ZeroDuration(), now);
  PunishBlamed(now);
  if (!members_.empty()) BeginForming(now);
}

absl::Duration Group::FormTime() const {
  const absl::Duration most = options_.form_timeout + kFormGrace;
  if (options_.coupled) return most;
  absl::Duration longest;
  for (const Member* member : ranks_) {
    const bool first_step =
        member->behind_since != absl::InfiniteFuture() && member->longest_step == absl::ZeroDuration();
    if (first_step || member->survivor) return most;
    longest = std::max(longest, member->longest_step);
  }
  return std::min(most, std::max(kLeastFormTime, kFormSteps * longest));
}

void Group::BeginForming(absl::Time now) {
  if (phase_ == Phase::kServing) listener_->OnEpochClosed();
  ranks_ = members();
  ++epoch_;
  newest_step_ = 0;
  phase_ = Phase::kForming;
  deadline_ = now + FormTime();
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    Member& member = *ranks_[rank];
    member.answered = member.ready = false;
    member.reported_step = 0;
    member.behind_since = absl::InfiniteFuture();
    member.blames = member.blamed = false;
    member.announced.clear();
    member.announced_bytes = 0;
    member.next_rank = static_cast<core::WorkerIndex>(rank);
    v1::RouterMessage message;
    v1::Epoch& epoch = *message.mutable_epoch();
    epoch.set_epoch(epoch_);
    const bool coupled = options_.coupled;
    epoch.set_rank(coupled ? static_cast<uint32_t>(rank) : 0);
    epoch.set_world_size(coupled ? static_cast<uint32_t>(ranks_.size()) : 1);
    epoch.set_uncoupled(!coupled);
    epoch.set_communicator_id(coupled ? ranks_.front()->offer : member.offer);
    epoch.set_plan_mode(options_.plan_mode == core::PlanMode::kPipelined ? v1::PLAN_MODE_PIPELINED
                                                                         : v1::PLAN_MODE_LOCKSTEP);
    epoch.set_form_timeout_ms(static_cast<uint32_t>(absl::ToInt64Milliseconds(options_.form_timeout)));
    epoch.set_step_timeout_ms(static_cast<uint32_t>(absl::ToInt64Milliseconds(options_.step_timeout)));
    epoch.set_router_instance(instance_);
    epoch.set_announce(member.survivor);
    epoch.set_retain_ms(static_cast<uint32_t>(absl::ToInt64Milliseconds(options_.resume_timeout)));
    // A newcomer's residents belong to a placement that has been given up: its stream broke. Those of another
    // router's are taken over.
    if (!member.survivor) {
      for (const v1::ActiveRequest& active : member.hello.active()) epoch.add_cancellations(active.handle());
    }
    member.session->Send(std::move(message));
  }
  spdlog::info("forming epoch {} of {} ranks", epoch_, ranks_.size());
}

void Group::FinishForming(absl::Time now) {
  phase_ = Phase::kServing;
  deadline_ = absl::InfiniteFuture();
  formed_once_ = true;
  failures_ = 0;
  for (const Member* member : ranks_) penalties_.erase(member->hello.worker_id());
  spdlog::info("epoch {} serves with {} ranks", epoch_, ranks_.size());
  // Only now: until here the members' late reports were counted under their old ranks.
  for (Member* member : ranks_) member->rank = member->next_rank;
  listener_->OnEpochOpen(epoch_, ranks_);
  for (Member* member : ranks_) {
    member->survivor = false;
    member->announced.clear();
  }
  // Who came while it formed.
  if (members_.size() > ranks_.size()) Reform(kSettleAfterJoin, false, now);
}

bool Group::ExpectsAnnouncements() const {
  return !formed_once_ && std::any_of(members_.begin(), members_.end(),
                                      [](const auto& member) { return member.second->survivor; });
}

Member* Group::Find(const WorkerSession* session) {
  const auto it = members_.find(session);
  return it == members_.end() ? nullptr : it->second.get();
}

Member* Group::FindById(const std::string& worker_id) {
  for (const auto& [session, member] : members_) {
    if (member->hello.worker_id() == worker_id) return member.get();
  }
  return nullptr;
}

Member* Group::ByRank(core::WorkerIndex rank) {
  if (phase_ != Phase::kServing || rank < 0 || rank >= static_cast<core::WorkerIndex>(ranks_.size()))
    return nullptr;
  return ranks_[rank];
}

std::vector<Member*> Group::members() {
  std::vector<Member*> all;
  for (const auto& [session, member] : members_) all.push_back(member.get());
  std::sort(all.begin(), all.end(),
            [](const Member* a, const Member* b) { return a->sequence < b->sequence; });
  return all;
}

}  // namespace bfio::router
