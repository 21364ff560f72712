// Epochs of Group: how an epoch forms, and what happens to requests when it opens.
#include <algorithm>
#include <cstdint>
#include <utility>

#include "router/group/group.h"

namespace bfio::router {

// --- deadlines ---

absl::Time Group::next_deadline() const {
  absl::Time next = std::min(deadline_, step_deadline());
  if (!serving()) return next;
  for (const Member* rank : ranks_) next = std::min(next, rank->behind_since + options_.step_timeout);
  return next;
}

void Group::OnTimer(absl::Time now, Commands& out) {
  const Context context{now, out};
  if (serving()) ExpelSilent(options_.step_timeout, context);
  if (now >= deadline_) {
    if (phase_ == Phase::kForming) {
      ExpelLate(context);
    } else if (PrepareToForm(context) && !members_.empty()) {
      BeginForming(context);
    }
  }
  OnStepTimer(context);
}

bool Group::AnyBehind() const {
  return std::any_of(ranks_.begin(), ranks_.end(),
                     [](const Member* rank) { return rank->behind_since != absl::InfiniteFuture(); });
}

void Group::ExpelSilent(absl::Duration limit, const Context& context) {
  std::vector<Member*> silent;
  for (Member* rank : ranks_) {
    if (context.now - rank->behind_since >= limit) silent.push_back(rank);
  }
  for (Member* rank : silent) {
    steps_.OnSilentRank();
    CutOff(*rank, absl::DeadlineExceededError("no step report in time"), context);
  }
}

// A rank that has not answered by now counts as stuck: the others continue without it.
void Group::ExpelLate(const Context& context) {
  std::vector<Member*> late;
  for (Member* rank : ranks_) {
    if (!rank->answered) late.push_back(rank);
  }
  for (Member* rank : late)
    OnLateToForm(*rank, absl::DeadlineExceededError("no EpochReady in time"), context);
}

// --- an epoch is formed ---

void Group::Reform(absl::Duration delay, bool close, const Context& context) {
  if (serving() && (close || members_.empty())) {
    CloseEpoch(context.out);
    phase_ = Phase::kGathering;
  }
  if (members_.empty()) {
    phase_ = Phase::kGathering;
    deadline_ = absl::InfiniteFuture();
    return;
  }
  const absl::Time when = context.now + delay;
  if (phase_ == Phase::kForming || phase_ == Phase::kGathering) {
    phase_ = Phase::kSettling;
    deadline_ = when;
  } else {
    // An open epoch continues to serve while new workers settle.
    deadline_ = std::min(deadline_, when);
  }
}

void Group::CloseEpoch(Commands& out) {
  cluster_->Apply(core::CloseEpoch{options_.index});
  OnClosed();
  out.push_back(EpochClosed{options_.index});
}

void Group::BeginForming(const Context& context) {
  if (serving()) CloseEpoch(context.out);
  ranks_ = ByArrival();
  ++epoch_;
  phase_ = Phase::kForming;
  deadline_ = context.now + FormTime();
  ResetProgress();
  core::WorkerIndex next_rank = 0;
  for (Member* member : ranks_) {
    member->next_rank = next_rank++;
    member->answered = member->ready = false;
    member->reported_step = 0;
    member->behind_since = absl::InfiniteFuture();
    member->blames = member->blamed = false;
    member->announced.clear();
    member->announced_bytes = 0;
    SendOffer(*member, context.out);
  }
  Log(context.out, LogLine::Level::kInfo, "forming epoch ", epoch_, " of ", ranks_.size(), " ranks");
}

void Group::SendOffer(const Member& member, Commands& out) const {
  SendEpoch send{member.id, {}};
  EpochOffer& offer = send.epoch;
  offer.epoch = epoch_;
  offer.plan_mode = options_.plan_mode;
  offer.form_timeout = options_.form_timeout;
  offer.step_timeout = options_.step_timeout;
  offer.router_instance = options_.instance;
  offer.announce = member.recovering;
  offer.retain = options_.retain;
  offer.group = options_.name;
  FillOffer(member, offer);
  // The requests that a new worker still holds were placed over an earlier connection that broke, and have
  // been placed again. Requests of another router are recovered instead.
  if (!member.recovering) {
    for (const HeldActive& active : member.hello.active) offer.cancellations.push_back(active.id);
  }
  out.push_back(std::move(send));
}

int64_t Group::announced_bytes() const {
  int64_t bytes = 0;
  for (const auto& [id, member] : members_) bytes += member->announced_bytes;
  return bytes;
}

void Group::OnAnnouncement(MemberId id, Announcement announcement, absl::Time now, Commands& out,
                           int64_t elsewhere_bytes) {
  Member* member = Find(id);
  if (member == nullptr || phase_ != Phase::kForming || announcement.epoch != epoch_ || member->answered ||
      !member->recovering) {
    return;
  }
  int64_t left = options_.max_announced_bytes - elsewhere_bytes - announced_bytes();
  for (size_t i = 0; i < announcement.requests.size(); ++i) {
    const int64_t bytes = i < announcement.bytes.size() ? announcement.bytes[i] : 0;
    left -= bytes;
    if (left < 0) {
      // The worker has no influence on the bound, so it is not refused: it drops the requests that are not
      // recovered.
      Log(out, LogLine::Level::kWarning, member->hello,
          " announces more requests of an earlier router than --request_memory_mb allows: the rest is "
          "dropped");
      return;
    }
    member->announced_bytes += bytes;
    member->announced.push_back(std::move(announcement.requests[i]));
  }
}

void Group::OnEpochReady(MemberId id, EpochReady ready, absl::Time now, Commands& out) {
  Member* member = Find(id);
  if (member == nullptr) return;
  member->offer = std::move(ready.communicator_offer);
  if (phase_ != Phase::kForming || ready.epoch != epoch_ || member->answered) return;
  const bool invited = std::find(ranks_.begin(), ranks_.end(), member) != ranks_.end();
  if (!invited) return;
  member->answered = true;
  member->ready = ready.error.empty();
  if (member->ready) {
    member->spoken_epoch = epoch_;
    member->hello.active.clear();  // dropped by now, because of EpochOffer::cancellations
    member->active = std::move(ready.active);
  } else {
    Log(out, LogLine::Level::kWarning, member->hello, " could not form epoch ", epoch_, ": ", ready.error);
    OnMissing(*member, ready.missing_ranks);
  }
  // A failure is usually another rank's. Which one failed is known when all ranks have answered.
  const auto all = [&](bool Member::*flag) {
    return std::all_of(ranks_.begin(), ranks_.end(), [&](const Member* rank) { return rank->*flag; });
  };
  if (!all(&Member::answered)) return;
  if (all(&Member::ready)) {
    FinishForming({now, out});
  } else {
    OnFormingFailed({now, out});
  }
}

void Group::FinishForming(const Context& context) {
  phase_ = Phase::kServing;
  deadline_ = absl::InfiniteFuture();
  formed_once_ = returns_ = true;
  complete_ |= static_cast<int64_t>(ranks_.size()) >= options_.workers;
  for (const Member* member : ranks_) history_.Forgive(member->hello.worker_id);
  Log(context.out, LogLine::Level::kInfo, "epoch ", epoch_, " serves with ", ranks_.size(), " ranks");
  OpenEpoch(context);
  for (Member* member : ranks_) {
    member->recovering = false;
    member->announced.clear();
    member->announced_bytes = 0;
  }
  // Members that joined while the epoch formed.
  if (members_.size() > ranks_.size()) Reform(SettleAfterJoin(context.now), false, context);
  // Their requests are replayed from the tokens that the router has received.
  for (Member* member : AuditResidents())
    CutOff(*member,
           absl::DataLossError(
               "the number of tokens that it has generated differs from the number that the router received"),
           context);
}

// --- opening an epoch in the scheduler ---

void Group::OpenEpoch(const Context& context) {
  SetServiceTimes({});
  std::vector<core::EpochMember> members;
  capacity_ = {.model = model_, .logprobs = true, .passes = true};
  for (Member* member : ranks_) {
    members.push_back(EpochMemberOf(*member, context.out));
    capacity_.sequence_tokens.push_back(members.back().spec.max_sequence_tokens);
    capacity_.kv_tokens += member->hello.kv_tokens;
    const uint32_t ids = member->hello.vocabulary;
    const bool known = ids > 0 && (capacity_.vocabulary > 0 || member == ranks_.front());
    capacity_.vocabulary = known ? std::max(ids, capacity_.vocabulary) : 0;
    capacity_.logprobs = capacity_.logprobs && member->hello.logprobs;
    capacity_.passes = capacity_.passes && member->hello.passes;
  }
  // Not earlier: until here, late reports and residents refer to the old ranks.
  for (Member* member : ranks_) {
    member->rank = member->next_rank;
    member->rank_epoch = epoch_;
  }
  const uint32_t lacks = (capacity_.logprobs ? 0 : core::RequestSpec::kLogprobs) |
                         (capacity_.passes ? 0 : core::RequestSpec::kPassing) |
                         (hands_over() ? core::RequestSpec::kDecodes : core::RequestSpec::kHandsOver);
  const core::OpenEpoch event{options_.index, std::move(members), model_, lacks};
  LoseRequests(cluster_->Apply(event).displaced, context.out);
  shortest_step_.reset();
  steps_timed_ = 0;
  steps_.OpenEpoch(epoch_, static_cast<int32_t>(ranks_.size()));
  OnOpened(context.now);
  context.out.push_back(EpochOpened{options_.index});
}

core::EpochMember Group::EpochMemberOf(Member& member, Commands& out) {
  core::EpochMember to;
  to.spec.slots = member.hello.slots;
  to.spec.kv_tokens = member.hello.kv_tokens;
  to.spec.accepts_new = !member.draining;
  to.spec.prefix_cache = member.hello.prefix_cache;
  to.spec.member = member.id;
  to.spec.time_per_token = member.telemetry.time.time_per_token;
  to.spec.time_offset = member.telemetry.time.time_offset;
  to.spec.service_time = member.telemetry.service_time;
  if (const std::optional<GroupCost>& cost = CostOf(member)) {
    to.spec.cost = cost->batch;
    to.spec.terms = cost->terms;
  }
  // The last token needs no KV memory.
  to.spec.max_sequence_tokens = std::min(member.hello.max_sequence_tokens, member.hello.kv_tokens + 1);
  // The scheduler has this router's own requests. Those of another router have ids of their own: the edge
  // gives them out, so none is taken for another request.
  if (member.recovering) {
    for (HeldRequest& held : member.announced) held.model = model_;
    to.recovered = book_->Recover({member.hello.worker_id, member.hello.kv_tokens, member.active},
                                  std::move(member.announced));
    if (!to.recovered.empty()) {
      Log(out, LogLine::Level::kInfo, member.hello, " continues ", to.recovered.size(),
          " requests of an earlier router");
    }
  }
  for (const HeldActive& active : member.active) to.resident.push_back({active.id, active.kv_tokens});
  return to;
}

void Group::LosePlaced(Commands& out) {
  LoseRequests(cluster_->Apply(core::OpenEpoch{options_.index, {}}).displaced, out);
}

void Group::LoseRequests(absl::Span<const core::RequestId> displaced, Commands& out) const {
  if (displaced.empty()) return;
  Log(out, LogLine::Level::kWarning, displaced.size(), " requests lost their worker and are placed again");
  // Each goes to the front of the pool, so reverse order leaves the oldest in front.
  for (auto id = displaced.rbegin(); id != displaced.rend(); ++id) out.push_back(RequestLost{*id});
}

std::vector<Member*> Group::AuditResidents() {
  std::vector<Member*> misbehaving;
  for (Member* member : ranks_) {
    bool equal = true;
    for (const HeldActive& active : member->active) {
      if (scheduler().WorkerOf(active.id) != member->rank) continue;
      const std::optional<uint32_t> received = book_->ReceivedSincePlaced(active.id);
      if (!received) continue;
      book_->CountTokens(active.generated_tokens, *received);
      equal = equal && active.generated_tokens == *received;
    }
    if (!equal) misbehaving.push_back(member);
  }
  return misbehaving;
}

}  // namespace bfio::router
