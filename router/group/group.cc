#include "router/group/group.h"

#include <algorithm>
#include <utility>

#include "common/base/router_instance.h"
#include "router/group/group_kinds.h"

namespace bfio::router {
namespace {

// Reports of each rank that are needed before the shortest step counts as a lower bound.
constexpr int64_t kStepsToJudge = 64;

}  // namespace

std::unique_ptr<Group> Group::Make(const GroupOptions& options, core::Cluster* cluster, RequestBook* book) {
  if (options.kind == core::GroupKind::kBarrier)
    return std::make_unique<BarrierGroup>(options, cluster, book);
  return std::make_unique<IndependentGroup>(options, cluster, book);
}

Group::Group(const GroupOptions& options, core::Cluster* cluster, RequestBook* book)
    : options_(options), cluster_(cluster), book_(book), steps_(options.index) {
  cluster_->Apply(core::AddGroup{options_.index, options_.kind});
}

// --- members come and go ---

void Group::SetKey(const GroupKey& key, uint32_t model) {
  if (key_ == key) return;
  // The next members are not the workers that the group has served with.
  formed_once_ = false;
  capacity_ = {};
  key_ = key;
  model_ = model;
}

absl::Status Group::CheckHello(const WorkerHello& hello, absl::Time now) const {
  if (FindWorker(hello.worker_id))
    return absl::AlreadyExistsError(absl::StrCat("worker_id ", hello.worker_id, " is attached already"));
  if (absl::Status status = CheckKind(hello); !status.ok()) return status;
  if (history_.Refuses(hello.worker_id, now))
    return absl::UnavailableError("this worker has recently prevented the group from forming; retry later");
  if (!MayFollow(hello.router_instance, options_.instance))
    return absl::UnavailableError(
        "this worker has already been connected to a router that was elected later");
  return absl::OkStatus();
}

void Group::OnHello(MemberId id, WorkerHello hello, absl::Time now, Commands& out) {
  if (members_.contains(id)) return Expel(id, absl::InvalidArgumentError("unexpected message"), now, out);
  if (absl::Status status = CheckHello(hello, now); !status.ok()) {
    Log(out, LogLine::Level::kWarning, hello, " is refused: ", status.message());
    out.push_back(CloseMember{id, std::move(status)});
    return;
  }
  auto member = std::make_unique<Member>();
  member->id = id;
  member->sequence = next_sequence_++;
  member->offer = hello.communicator_offer;
  member->recovering = hello.router_instance != 0 && hello.router_instance != options_.instance;
  member->draining = history_.TakeDraining(hello.worker_id, hello.router_instance, options_.instance);
  member->hello = std::move(hello);
  some_drain_ |= member->draining;
  const Member& added = *member;
  members_.emplace(id, std::move(member));
  give_up_at_ = absl::InfiniteFuture();
  returns_ |= formed_once_;
  Log(out, LogLine::Level::kInfo, added.hello, " attached (", added.hello.slots, " slots, ",
      added.hello.kv_tokens, " KV tokens, engine ", added.hello.engine, ", ", Describe(*key_), "); ",
      members_.size(), " of ", options_.workers);
  const Context context{now, out};
  if (formed_once_) {
    // If an epoch is forming already, it continues: FinishForming adds the new member. Only in a serving
    // group does forming again cost something, so only there does each further join wait longer.
    if (phase_ != Phase::kForming)
      Reform(serving() ? SettleAfterJoin(now) : kSettleAfterJoin, false, context);
  } else if (static_cast<int64_t>(members_.size()) >= options_.workers) {
    Reform(absl::ZeroDuration(), false, context);
  } else if (added.recovering) {
    Reform(options_.restart_settle, false, context);
  }
}

absl::Duration Group::SettleAfterJoin(absl::Time now) const {
  return std::min(kLongestSettleAfterJoin, kSettleAfterJoin * (int64_t{1} << history_.RecentlyLeft(now)));
}

void Group::FormWithFewer(absl::Time now, Commands& out) {
  Log(out, LogLine::Level::kInfo, "forms with ", members_.size(), " of ", options_.workers,
      " workers, because another group with its name has served before");
  Reform(options_.restart_settle, false, {now, out});
}

void Group::OnLeave(MemberId id, absl::string_view reason, absl::Time now, Commands& out) {
  Member* member = Find(id);
  if (member == nullptr) return;
  Log(out, LogLine::Level::kInfo, member->hello, " asks to leave: ", reason);
  member->leaving = true;
  BeginDraining(*member);
}

absl::Status Group::Drain(absl::string_view worker_id, absl::Time now, Commands& out) {
  const std::optional<MemberId> id = FindWorker(worker_id);
  if (!id) return absl::NotFoundError(absl::StrCat("no worker ", worker_id));
  Log(out, LogLine::Level::kInfo, "draining worker ", worker_id);
  BeginDraining(*Find(*id));
  return absl::OkStatus();
}

absl::Status Group::Undrain(absl::string_view worker_id, Commands& out) {
  const std::optional<MemberId> id = FindWorker(worker_id);
  if (!id) return absl::NotFoundError(absl::StrCat("no worker ", worker_id));
  Member& member = *Find(*id);
  if (!member.draining) return absl::FailedPreconditionError(absl::StrCat(worker_id, " is not drained"));
  if (member.leaving) {
    return absl::FailedPreconditionError(absl::StrCat(worker_id, " asked to leave and cannot be undrained"));
  }
  Log(out, LogLine::Level::kInfo, "worker ", worker_id, " takes requests again");
  member.draining = false;
  if (const auto rank = RankOf(member)) cluster_->Apply(core::SetAcceptsNew{options_.index, *rank, true});
  return absl::OkStatus();
}

void Group::BeginDraining(Member& member) {
  member.draining = some_drain_ = true;
  if (const auto rank = RankOf(member)) cluster_->Apply(core::SetAcceptsNew{options_.index, *rank, false});
}

void Group::OnGone(MemberId id, absl::Time now, Commands& out) {
  const Member* member = Find(id);
  if (member == nullptr) return;
  Log(out, LogLine::Level::kWarning, member->hello, " has disconnected");
  const bool invited = std::find(ranks_.begin(), ranks_.end(), member) != ranks_.end();
  if (phase_ == Phase::kForming && invited && !member->rank) history_.CountLeft(member->hello.worker_id, now);
  Remove(id, absl::UnavailableError("the connection is lost"), {now, out});
}

void Group::Expel(MemberId id, const absl::Status& why, absl::Time now, Commands& out) {
  if (Member* member = Find(id); member != nullptr) CutOff(*member, why, {now, out});
}

void Group::CutOff(Member& member, const absl::Status& why, const Context& context) {
  Log(context.out, LogLine::Level::kWarning, member.hello, " is disconnected: ", why.message());
  Remove(member.id, why, context);
}

void Group::Punish(Member& member, const absl::Status& why, const Context& context) {
  history_.Punish(member.hello.worker_id, context.now);
  CutOff(member, why, context);
}

void Group::Remove(MemberId id, const absl::Status& why, const Context& context) {
  const auto it = members_.find(id);
  Member* const member = it->second.get();
  if (member->draining) history_.RememberDraining(member->hello.worker_id, member->hello.router_instance);
  // A draining worker may exit before its last request has ended, which is not a failure.
  const bool died = !why.ok() && !member->draining;
  if (died && member->rank) book_->OnWorkerDied(options_.index, *member->rank);
  const bool ranked = std::find(ranks_.begin(), ranks_.end(), member) != ranks_.end();
  // ranks_ must not point to a removed member, in any phase.
  std::erase(ranks_, member);
  members_.erase(it);
  context.out.push_back(CloseMember{id, why});
  if (ranked || members_.empty()) Reform(kSettleAfterLoss, true, context);
  if (!members_.empty() || !formed_once_) return;
  // A worker may return with its requests; requests of engines have ended with the connection. In both cases
  // the capacity counts until GiveUp.
  if (capacity_.passes) LosePlaced(context.out);
  give_up_at_ = context.now + options_.restart_settle;
}

bool Group::MayLeave(const Member& member) const {
  // The member has never served, but may hold requests of an earlier router.
  if (!member.rank) return !member.recovering;
  // Between epochs the member's requests are not known.
  const std::optional<core::WorkerIndex> rank = RankOf(member);
  if (!rank) return false;
  const core::Scheduler::WorkerAccount account = scheduler().Account(*rank);
  return account.active + account.inflight == 0;
}

void Group::Release(Member& member, const Context& context) {
  Log(context.out, LogLine::Level::kInfo, member.hello, " is drained and leaves");
  context.out.push_back(SendShutdown{member.id, "drained"});
  member.draining = false;
  Remove(member.id, absl::OkStatus(), context);
}

void Group::Settle(absl::Time now, Commands& out) {
  if (scheduler().Parked()) {
    StepStatistics::Summaries done;
    steps_.OnParked(cluster_->waiting(), done);
    EmitSteps(done, out);
  }
  if (!std::exchange(some_drain_, false)) return;
  for (Member* member : ByArrival()) {
    if (!member->draining) continue;
    if (MayLeave(*member)) {
      Release(*member, {now, out});
    } else {
      some_drain_ = true;
    }
  }
}

void Group::GiveUp(absl::Time now, Commands& out) {
  give_up_at_ = absl::InfiniteFuture();
  returns_ = false;
  capacity_ = {};
  LosePlaced(out);
}

// --- views ---

bool Group::ExpectsAnnouncements() const {
  return !formed_once_ && std::any_of(members_.begin(), members_.end(),
                                      [](const auto& member) { return member.second->recovering; });
}

std::vector<MemberView> Group::Members() const {
  std::vector<MemberView> views;
  for (const Member* member : ByArrival()) {
    const WorkerHello& hello = member->hello;
    views.push_back({member->id, hello.worker_id, hello.engine, hello.model, hello.kv_engine_id, hello.slots,
                     hello.kv_tokens, hello.service_s, member->draining, RankOf(*member), member->telemetry});
  }
  return views;
}

std::optional<absl::Duration> Group::shortest_step() const {
  if (steps_timed_ < kStepsToJudge * scheduler().num_workers()) return std::nullopt;
  return shortest_step_;
}

std::optional<MemberId> Group::FindWorker(absl::string_view worker_id) const {
  for (const auto& [id, member] : members_) {
    if (member->hello.worker_id == worker_id) return id;
  }
  return std::nullopt;
}

std::optional<MemberId> Group::FindSuperseded(const WorkerHello& hello) const {
  const std::optional<MemberId> id = FindWorker(hello.worker_id);
  if (!id || hello.worker_instance == 0) return std::nullopt;
  const WorkerHello& before = members_.at(*id)->hello;
  const bool same = before.worker_instance == hello.worker_instance && before.stream < hello.stream;
  return same ? id : std::nullopt;
}

Member* Group::Find(MemberId id) {
  const auto it = members_.find(id);
  return it == members_.end() ? nullptr : it->second.get();
}

std::vector<Member*> Group::ByArrival() const {
  std::vector<Member*> all;
  for (const auto& [id, member] : members_) all.push_back(member.get());
  std::sort(all.begin(), all.end(),
            [](const Member* a, const Member* b) { return a->sequence < b->sequence; });
  return all;
}

std::optional<core::WorkerIndex> Group::RankOf(const Member& member) const {
  if (!serving() || member.rank_epoch != epoch_) return std::nullopt;
  return member.rank;
}

bool Group::Saturated() const {
  const core::Scheduler& accounts = scheduler();
  for (core::WorkerIndex g = 0; g < accounts.num_workers(); ++g) {
    const core::Scheduler::WorkerAccount account = accounts.Account(g);
    if (account.active + account.inflight < account.spec.slots) return false;
  }
  return true;
}

}  // namespace bfio::router
