#include "router/engine_link/engine_server.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/peer_text.h"
#include "common/base/spdlog.h"
#include "router/engine_link/engine_channel.h"
#include "router/engine_link/placed_rank.h"
#include "router/engine_link/streamed_rank.h"
#include "router/requests/kv_transfer.h"

namespace bfio::router {
namespace {

// Whether a call may have failed because its server did. A dead engine answers INTERNAL for a while.
bool MayBeLost(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsInternal(status) || absl::IsUnknown(status) ||
         absl::IsCancelled(status);
}

// Longer than the KV of a prompt is waited for: some engines free it when its call is cancelled.
constexpr absl::Duration kLongestClosing = absl::Seconds(30);

absl::Duration Longer(absl::Duration retry) {
  return std::clamp(2 * retry, EngineLink::kShortestRetry, EngineLink::kLongestRetry);
}

}  // namespace

EngineServer::EngineServer(EngineAddress address, const EngineLink::Options* options, WorkerHandler* handler,
                           std::shared_ptr<EventQueue> events, EngineServers* servers, EngineBarrier* barrier)
    : address_(std::move(address)),
      name_(address_.ToString()),
      options_(options),
      handler_(handler),
      events_(std::move(events)),
      servers_(servers),
      barrier_(barrier),
      client_(options->make_client(address_)) {}

EngineServer::~EngineServer() {
  servers_->serving.erase(name_);
  Unsubscribe();
}

// --- the connection ---

void EngineServer::OnTimer(absl::Time now) {
  if (now >= next_at_) state_ == State::kServing ? CheckHealth(now) : RequestDescription();
  for (size_t r = 0; r < ranks_.size(); ++r) {
    Rank& rank = ranks_[r];
    if (now >= rank.attach_at) Attach(r);
    if (rank.machine != nullptr && now >= rank.machine->next_deadline())
      Tell(r, rank.channel->id(), &EngineRank::OnTimer);
  }
}

absl::Time EngineServer::next_deadline() const {
  absl::Time next = next_at_;
  for (const Rank& rank : ranks_) {
    next = std::min(next, rank.attach_at);
    if (rank.machine != nullptr) next = std::min(next, rank.machine->next_deadline());
  }
  return next;
}

void EngineServer::RequestDescription() {
  state_ = State::kAsking;
  next_at_ = absl::InfiniteFuture();
  least_answer_ = last_least_ = absl::InfiniteDuration();
  described_at_ = MonotonicNow();
  client_->Describe(options_->patience, Posted(&EngineServer::OnDescription));
}

void EngineServer::OnDescription(absl::StatusOr<EngineDescription> description) {
  if (retired_) {
    // Ranks that attach now would never leave. The server may be listed again before it is removed.
    state_ = State::kIdle;
    next_at_ = MonotonicNow() + EngineLink::kShortestRetry;
    return;
  }
  if (description.ok()) {
    if (absl::Status status = Complete(*description); !status.ok()) description = status;
  }
  if (!description.ok()) return AskAgain(description.status());
  description_ = *std::move(description);
  OnAnswer(MonotonicNow() - described_at_, EngineClient::kDescribeCalls);
  // A server whose engine has died may still answer Describe.
  client_->CheckHealth(options_->patience, Posted([](EngineServer& server, const absl::Status& health) {
                         if (server.state_ == State::kAsking)
                           health.ok() ? server.Serve() : server.AskAgain(health);
                       }));
}

void EngineServer::AskAgain(const absl::Status& why) {
  state_ = State::kIdle;
  retry_ = Longer(retry_);
  next_at_ = MonotonicNow() + retry_;
  ReplaceClientIfSilent(why);
  const std::string error(why.message());
  if (std::exchange(last_error_, error) != error)
    spdlog::warn("engine {} cannot be used, retrying: {}", name_, PeerText(error));
}

void EngineServer::Serve() {
  if (retired_) return AskAgain(absl::CancelledError("it is no longer listed"));
  if (absl::Status status = CheckPairs(); !status.ok()) return AskAgain(status);
  servers_->serving[name_] = description_;
  state_ = State::kServing;
  last_error_.clear();
  retry_ = absl::ZeroDuration();
  ++connection_;
  checking_ = describing_ = false;
  failing_since_ = absl::InfiniteFuture();
  resized_.reset();
  described_at_ = MonotonicNow();
  records_ended_ = loads_requested_ = loads_unimplemented_ = sends_records_ = false;
  subscribe_at_ = absl::InfinitePast();
  subscribe_retry_ = absl::ZeroDuration();
  if (events_of_ranks_ == nullptr)
    events_of_ranks_ = EngineEvents::Of(address_, Posted(&EngineServer::OnMetered));
  spdlog::info("engine {}: model {}, {} ranks of {} slots and {} KV tokens", name_,
               PeerText(description_.model), description_.ranks, description_.slots, description_.kv_tokens);
  if (description_.hands_over)
    spdlog::info("engine {}: it computes prompts for other servers ({})", name_,
                 PeerText(description_.kv_connector));
  if (description_.ranks < description_.all_ranks) {
    spdlog::info("engine {}: it has ranks {} to {} of {}", name_, description_.first_rank,
                 description_.first_rank + description_.ranks - 1, description_.all_ranks);
  }
  if (description_.joined_ranks > 1) {
    spdlog::log(address_.barrier.empty() ? spdlog::level::info : spdlog::level::warn,
                "engine {}: it distributes requests over its {} ranks itself, so the router treats them as "
                "one rank{}; if its gRPC servicer honours data_parallel_rank, set `pinned: true`",
                name_, description_.joined_ranks,
                address_.barrier.empty() ? "" : ", and its barrier has no effect within it");
  }
  if (description_.ranks == 1 && description_.first_rank == 0 && description_.all_ranks > 1) {
    spdlog::warn(
        "engine {}: GetLoads reports only rank 0 of {}, so only that rank is used; if the server has more "
        "ranks, its statistics are off (--disable-log-stats)",
        name_, description_.all_ranks);
  }
  ranks_.clear();
  ranks_.resize(static_cast<size_t>(description_.ranks));
  for (size_t r = 0; r < ranks_.size(); ++r) Attach(r);
  next_at_ = MonotonicNow() + client_->check_interval();
}

absl::Status EngineServer::CheckPairs() const {
  const auto kv_of = [](const EngineDescription& one) {
    return one.kv_connector.empty() ? std::string("no KV connector")
                                    : absl::StrCat(one.kv_connector, ", KV ", one.kv_type, ", blocks of ",
                                                   one.kv_block_tokens, ", model ", one.model);
  };
  bool alone = description_.hands_over;
  for (const auto& [name, other] : servers_->serving) {
    if (other.hands_over == description_.hands_over) continue;
    if (!Pair(description_, other)) {
      return absl::FailedPreconditionError(absl::StrCat("it has ", kv_of(description_), " and ", name,
                                                        " has ", kv_of(other),
                                                        ", so neither can decode the other's prompts"));
    }
    alone = false;
  }
  if (!alone) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "it computes prompts for other servers, and none that serves can decode them");
}

void EngineServer::CheckHealth(absl::Time now) {
  next_at_ = absl::InfiniteFuture();
  CancelLeftOpen(now);
  if (std::exchange(checking_, true)) return;
  if (!describing_) doubtful_ = std::exchange(unchecked_, {});
  // Another server may have taken over the address, for example of a Kubernetes service or a restarted
  // container. It may be healthy, but have another model or other sizes.
  if (!describing_ &&
      (records_ended_ || !doubtful_.empty() || now >= described_at_ + EngineLink::kDescribeAgain)) {
    describing_ = true;
    records_ended_ = false;
    described_at_ = MonotonicNow();
    client_->Describe(options_->patience, OfConnection(&EngineServer::OnDescribedAgain));
  }
  checked_at_ = MonotonicNow();
  client_->CheckHealth(options_->patience, OfConnection(&EngineServer::OnHealth));
}

void EngineServer::CancelLeftOpen(absl::Time now) {
  std::erase_if(closing_, [now](const auto& one) {
    const auto stream = one.second.lock();
    const bool late = now - one.first > kLongestClosing;
    if (stream != nullptr && late) stream->Cancel();
    return stream == nullptr || late;
  });
}

void EngineServer::CheckSoon() {
  if (checking_ || describing_) return;
  const absl::Time now = MonotonicNow(), at = described_at_ + client_->check_interval();
  if (now >= at) return CheckHealth(now);
  next_at_ = std::min(next_at_, at);
}

void EngineServer::OnDescribedAgain(absl::StatusOr<EngineDescription> description) {
  if (description.ok()) {
    last_least_ = std::exchange(least_answer_, absl::InfiniteDuration());
    OnAnswer(MonotonicNow() - described_at_, EngineClient::kDescribeCalls);
    FillIn(description_, *description);
    if (Complete(*description).ok()) {
      // Other sizes alone may be a late report; where a call has failed too, they are another server's.
      const bool replaced = !doubtful_.empty() && *description != description_;
      if (replaced || !SameServer(*description, description_)) {
        return Lose(
            absl::AbortedError("another server answers at its address, or its model or sizes have changed"));
      }
      Resize(*description);
    }
  } else if (absl::IsUnavailable(description.status())) {
    return Lose(description.status());
  }
  // A healthy server that does not answer Describe now counts as unchanged.
  describing_ = false;
  ResolveFailures();
}

void EngineServer::Resize(const EngineDescription& description) {
  const size_t ranks = ranks_.size();
  if (description.first_rank == description_.first_rank && description.ranks > description_.ranks) {
    spdlog::info("engine {}: it has {} more ranks", name_, description.ranks - description_.ranks);
    description_.ranks = description.ranks;
    ranks_.resize(static_cast<size_t>(description.ranks));
    for (size_t r = ranks; r < ranks_.size(); ++r) Attach(r);
  }
  resized_.reset();
  if (description != description_) resized_ = description;
}

void EngineServer::OnHealth(const absl::Status& health) {
  checking_ = false;
  const absl::Time now = MonotonicNow();
  next_at_ = now + client_->check_interval();
  if (!health.ok()) {
    // A check that is late or says no is one sign of a loss, because a server that computes long prompts
    // answers late. The other is a call that failed, or a second check with no output since the first.
    const bool again = failing_since_ <= now && last_output_ < failing_since_;
    if (absl::IsUnavailable(health) || !doubtful_.empty() || again) return Lose(health);
    failing_since_ = checked_at_;
    return ReplaceClientIfSilent(health);
  }
  failing_since_ = absl::InfiniteFuture();
  OnAnswer(now - checked_at_);
  // Those that decode may have left, and those of other groups must not wait for it.
  if (absl::Status status = CheckPairs(); description_.hands_over && !status.ok()) return Lose(status);
  const auto idle = [](const Rank& rank) { return rank.streams.empty(); };
  if (resized_ && !describing_ && std::all_of(ranks_.begin(), ranks_.end(), idle)) {
    description_ = *std::exchange(resized_, std::nullopt);
    LoseRanks();
    return Serve();
  }
  CheckLoads();
  ResolveFailures();
}

void EngineServer::OnAnswer(absl::Duration took, int calls) {
  least_answer_ = std::min(least_answer_, took / calls);
  for (Rank& rank : ranks_)
    if (rank.machine != nullptr) rank.machine->OnRoundTrip(std::min(least_answer_, last_least_));
}

void EngineServer::ResolveFailures() {
  if (checking_ || describing_) return;
  for (Failure& failure : std::exchange(doubtful_, {}))
    Tell(failure.rank, failure.member, &EngineRank::OnFailed, failure.call, failure.status);
  if (!unchecked_.empty() || records_ended_) CheckSoon();
}

// --- loads ---

void EngineServer::CheckLoads() {
  if (records_ == nullptr && MonotonicNow() >= subscribe_at_) Subscribe();
  bool all_have_records = true;
  for (size_t r = 0; r < ranks_.size(); ++r) {
    if (std::exchange(ranks_[r].has_record, false)) continue;
    all_have_records = false;
    if (loads_unimplemented_) TakeLoad(r, std::nullopt);
  }
  if (all_have_records || loads_unimplemented_ || std::exchange(loads_requested_, true)) return;
  loads_asked_at_ = MonotonicNow();
  client_->GetLoads(options_->patience, OfConnection(&EngineServer::OnLoads));
}

void EngineServer::OnLoads(const absl::StatusOr<std::vector<EngineRankLoad>>& loads) {
  loads_requested_ = false;
  if (loads.ok()) OnAnswer(MonotonicNow() - loads_asked_at_);
  loads_unimplemented_ = absl::IsUnimplemented(loads.status());
  for (size_t r = 0; r < ranks_.size(); ++r) {
    // An answer may be slow, so the record is newer.
    if (ranks_[r].has_record) continue;
    std::optional<EngineLoad> load;
    for (size_t i = 0; loads.ok() && i < loads->size() && !load; ++i) {
      if ((*loads)[i].rank == description_.first_rank + static_cast<int32_t>(r)) load = (*loads)[i].load;
    }
    TakeLoad(r, load);
  }
}

void EngineServer::Subscribe() {
  EngineClient::RecordCallbacks callbacks;
  callbacks.on_records = Posted([subscription = subscription_](EngineServer& server) {
    if (server.subscription_ == subscription) server.OnRecords();
  });
  callbacks.on_end = Posted([subscription = subscription_](EngineServer& server, const absl::Status& why) {
    if (server.subscription_ == subscription) server.OnRecordsEnded(why);
  });
  records_ = client_->Subscribe(std::move(callbacks));
}

void EngineServer::Unsubscribe() {
  ++subscription_;
  if (records_ != nullptr) records_->Cancel();
  records_ = nullptr;
}

void EngineServer::OnRecords() {
  if (records_ == nullptr) return;
  for (const EngineRankLoad& load : records_->Take()) {
    const int64_t r = int64_t{load.rank} - description_.first_rank;
    if (r < 0 || r >= std::ssize(ranks_)) continue;
    ranks_[static_cast<size_t>(r)].has_record = true;
    if (!std::exchange(sends_records_, true))
      spdlog::info("engine {}: it sends its loads as records (SubscribeKvEvents)", name_);
    TakeLoad(static_cast<size_t>(r), load.load);
    subscribe_retry_ = absl::ZeroDuration();
  }
}

void EngineServer::OnMetered() {
  for (const auto& [rank, steps] : events_of_ranks_->TakeSteps()) {
    const int64_t r = int64_t{rank} - description_.first_rank;
    if (r < 0 || r >= std::ssize(ranks_) || ranks_[static_cast<size_t>(r)].channel == nullptr) continue;
    const MemberId member = ranks_[static_cast<size_t>(r)].channel->id();
    for (const EngineStep& step : steps) Tell(static_cast<size_t>(r), member, &EngineRank::OnStep, step);
  }
}

void EngineServer::OnRecordsEnded(const absl::Status& why) {
  records_ = nullptr;
  subscribe_retry_ = Longer(subscribe_retry_);
  // A server without records is not asked again until another server takes its place.
  subscribe_at_ = absl::IsUnimplemented(why) ? absl::InfiniteFuture() : MonotonicNow() + subscribe_retry_;
  if (absl::IsUnimplemented(why)) return;
  records_ended_ = true;
  CheckSoon();
}

void EngineServer::TakeLoad(size_t r, std::optional<EngineLoad> load) {
  if (load && r < description_.running.size()) description_.running[r] = *load;
  if (ranks_[r].channel == nullptr) return;
  if (load && events_of_ranks_ != nullptr)
    events_of_ranks_->TakeChanges(description_.first_rank + static_cast<int32_t>(r), *load);
  Tell(r, ranks_[r].channel->id(), &EngineRank::OnLoad, load);
}

void EngineServer::Lose(const absl::Status& why) {
  spdlog::warn("engine {} is lost: {}", name_, PeerText(why.message()));
  LoseRanks();
  state_ = State::kIdle;
  retry_ = EngineLink::kShortestRetry;
  next_at_ = MonotonicNow() + retry_;
  ReplaceClientIfSilent(why);
}

void EngineServer::LoseRanks() {
  ++connection_;
  servers_->serving.erase(name_);
  Unsubscribe();
  for (Rank& rank : ranks_) {
    if (rank.channel != nullptr) handler_->OnWorkerEvent(rank.channel, Gone{});
    Detach(rank);
  }
  ranks_.clear();
  doubtful_.clear();
  unchecked_.clear();
}

void EngineServer::ReplaceClientIfSilent(const absl::Status& why) {
  if (!absl::IsDeadlineExceeded(why) || !client_->keeps_connection()) return;
  // The replaced client takes its records along: they are of the dead connection.
  Unsubscribe();
  client_ = options_->make_client(address_);
}

// --- ranks come and go ---

void EngineServer::Attach(size_t r) {
  Rank& rank = ranks_[r];
  rank.attach_at = absl::InfiniteFuture();
  const std::string name = absl::StrCat(name_, "#", r);
  rank.channel = std::make_shared<EngineChannel>(servers_->next_member++, name, weak_from_this(), r, events_);
  // Prompts for others are computed without meeting anyone.
  EngineBarrier* const barrier = description_.hands_over ? nullptr : barrier_;
  const EngineRank::Options options = {.slots = description_.slots,
                                       .kv_tokens = description_.kv_tokens,
                                       .token_budget = barrier == nullptr ? 0 : address_.token_budget,
                                       .barrier = barrier,
                                       .number = rank.channel->id(),
                                       .on_trial = rank.on_trial};
  if (client_->carries_tokens()) {
    rank.machine = std::make_unique<StreamedRank>(options);
  } else {
    const std::vector<EngineLoad>& running = description_.running;
    rank.machine =
        std::make_unique<PlacedRank>(options, r < running.size() ? std::optional(running[r]) : std::nullopt);
  }
  if (events_of_ranks_ != nullptr) {
    events_of_ranks_->Begin(description_.first_rank + static_cast<int32_t>(r),
                            description_.kv_tokens / std::max(1, description_.kv_block_tokens));
  }
  WorkerHello hello;
  hello.worker_id = name;
  hello.hands_over = description_.hands_over;
  const KvConnector& connector = KvConnectorOf(description_.kv_connector);
  hello.in_parallel = connector.in_parallel();
  hello.computes_none = connector.computes_none();
  hello.kv_engine_id = description_.kv_engine_id;
  hello.group = hello.hands_over ? "prefill" : address_.barrier;
  // If the rank drains because the server was not listed, the drain ends when the server is listed again.
  hello.router_instance = std::exchange(rank.leaving, false) ? 0 : rank.router_instance;
  hello.model = ModelDigest(description_);
  hello.slots = description_.slots;
  hello.kv_tokens = description_.kv_tokens;
  hello.max_sequence_tokens = description_.max_sequence_tokens;
  hello.vocabulary = description_.vocabulary;
  hello.engine = address_.protocol;
  hello.steps_alone = true;
  hello.passes = true;
  // Engines have prefix caching by default. Where it is off, they report no hits, and placement adapts to
  // that.
  hello.prefix_cache = true;
  handler_->OnWorkerEvent(rank.channel, std::move(hello));
}

void EngineServer::Detach(Rank& rank) {
  for (auto& [number, stream] : rank.streams) stream->Cancel();
  rank.streams.clear();
  rank.kv_source.clear();
  if (barrier_ != nullptr && rank.channel != nullptr) {
    barrier_->watch.OnIdle(rank.channel->id());
    barrier_->prompts.Set(rank.channel->id(), 0);
  }
  rank.machine = nullptr;
  rank.channel = nullptr;
}

void EngineServer::OnClosed(size_t r, MemberId member, const absl::Status& why) {
  Rank* rank = Find(r, member);
  if (rank == nullptr) return;
  handler_->OnWorkerEvent(rank->channel, Gone{});
  Detach(*rank);
  if (rank->drained || retired_) return;
  // Otherwise it would be the emptiest rank and get many requests.
  rank->on_trial = rank->on_trial || absl::IsDeadlineExceeded(why);
  spdlog::warn("engine {}: rank {} is not used for now: {}", name_, r, std::string(why.message()));
  rank->retry = Longer(rank->retry);
  rank->attach_at = MonotonicNow() + rank->retry;
}

void EngineServer::OnReleased(size_t r, MemberId member) {
  Rank* rank = Find(r, member);
  // A server that is listed again attaches when this connection has been closed.
  if (rank != nullptr) rank->drained = retired_ || !rank->leaving;
}

void EngineServer::Retire() {
  if (std::exchange(retired_, true)) return;
  spdlog::info("engine {} is no longer listed: it is removed when its requests have ended", name_);
  for (Rank& rank : ranks_) {
    rank.attach_at = absl::InfiniteFuture();
    rank.leaving = true;
    if (rank.channel != nullptr) handler_->OnWorkerEvent(rank.channel, Leave{"it is no longer listed"});
  }
}

void EngineServer::Keep() {
  if (!std::exchange(retired_, false)) return;
  spdlog::info("engine {} is listed again", name_);
  for (Rank& rank : ranks_) {
    // Also for a rank that has been released and whose connection is not closed yet.
    rank.drained = false;
    if (rank.channel == nullptr) rank.attach_at = MonotonicNow();
  }
}

bool EngineServer::gone() const {
  return retired_ &&
         (state_ != State::kServing || std::all_of(ranks_.begin(), ranks_.end(),
                                                   [](const Rank& rank) { return rank.channel == nullptr; }));
}

void EngineServer::CancelAll() {
  Unsubscribe();
  for (Rank& rank : ranks_) Detach(rank);
}

EngineServer::Rank* EngineServer::Find(size_t r, MemberId member) {
  if (r >= ranks_.size() || ranks_[r].channel == nullptr || ranks_[r].channel->id() != member) return nullptr;
  return &ranks_[r];
}

bool EngineServer::Free(const std::string& parameters) {
  if (state_ != State::kServing || description_.hands_over) return false;
  client_->Free(parameters);
  return true;
}

// --- plans and tokens ---

void EngineServer::OnEpoch(size_t r, MemberId member, const EpochOffer& offer) {
  if (Rank* const rank = Find(r, member)) rank->router_instance = offer.router_instance;
  Tell(r, member, &EngineRank::OnEpoch, offer);
}

void EngineServer::OnPlan(size_t r, MemberId member, const PlanPart& plan,
                          std::vector<EngineRank::Placement> placements) {
  Tell(r, member, &EngineRank::OnPlan, plan, std::move(placements));
}

std::optional<size_t> EngineServer::RankOf(MemberId member) const {
  for (size_t r = 0; r < ranks_.size(); ++r) {
    if (ranks_[r].channel != nullptr && ranks_[r].channel->id() == member) return r;
  }
  return std::nullopt;
}

std::optional<int64_t> EngineServer::OnStep(size_t r, MemberId member, const EngineStep& step) {
  Tell(r, member, &EngineRank::OnStep, step);
  const Rank* const rank = Find(r, member);
  return rank == nullptr ? std::nullopt : rank->machine->Allotment();
}

void EngineServer::CarryOut(size_t r, EngineRank::Output out) {
  Rank& rank = ranks_[r];
  rank.on_trial = rank.on_trial && rank.machine->on_trial();
  for (StepReport& report : out.reports) handler_->OnWorkerEvent(rank.channel, std::move(report));
  for (EpochReady& ready : out.ready) handler_->OnWorkerEvent(rank.channel, std::move(ready));
  for (const CallNumber number : out.cancel) {
    const auto it = rank.streams.find(number);
    if (it == rank.streams.end()) continue;
    it->second->Cancel();
    rank.streams.erase(it);
  }
  for (EngineRank::StartCall& start : out.start) Start(r, std::move(start));
  if (!out.warning.empty()) spdlog::warn("engine {}: rank {}: {}", name_, r, out.warning);
  if (barrier_ == nullptr) return;
  const std::string wrong = barrier_->watch.TakeWarning();
  if (wrong.empty()) return;
  spdlog::warn(
      "barrier {}: {}; if its ranks do not synchronize in every step, remove the barrier from `engines`",
      address_.barrier, wrong);
}

void EngineServer::Start(size_t r, EngineRank::StartCall start) {
  Rank& rank = ranks_[r];
  const MemberId member = rank.channel->id();
  const CallNumber number = start.number;
  // A MemberId is never reused while the router runs, so the name is unique.
  const std::string name = EngineRequestName{options_->instance, member, number}.ToString();
  const bool several = std::max(description_.ranks, description_.all_ranks) > 1;
  if (start.call.hands_over) {
    const std::string& engine = description_.kv_engine_id;
    const bool exact = !start.call.passed.on || start.call.passed.exact_length;
    const int64_t tokens = exact ? start.call.prompt_tokens() : description_.max_sequence_tokens;
    const int64_t block = std::max(1, description_.kv_block_tokens);
    const int64_t least = exact && description_.kv_block_tokens > 0 ? (tokens + block - 1) / block : 1;
    const auto port = static_cast<uint16_t>(
        description_.kv_bootstrap_port != 0 ? description_.kv_bootstrap_port : kBootstrapPort);
    start.call.kv_source = {
        description_.kv_connector,
        several && !engine.empty() ? absl::StrCat(engine, "_dp", r) : engine,
        address_.kv_bootstrap.port != 0 ? address_.kv_bootstrap : Address{address_.server.host, port},
        name,
        servers_->NextRoom(several ? description_.ranks : 1, r),
        several ? std::optional(static_cast<int32_t>(r)) : std::nullopt,
        static_cast<size_t>((tokens + int64_t{kKvTokensAhead}) / block) + 1,
        static_cast<size_t>(least),
        address_.server};
  }
  if (start.call.synthetic_tokens > 0)
    start.call.prompt = SyntheticPrompt(start.call.synthetic_tokens, description_.vocabulary);
  if (start.call.hand_off != nullptr && start.call.hand_off->kept != nullptr)
    start.call.hand_off->kept->Sent();
  if (start.call.hand_off != nullptr && start.call.hand_off->meeting != nullptr) {
    std::string& meeting = *start.call.hand_off->meeting;
    const KvConnector& connector = KvConnectorOf(description_.kv_connector);
    if (start.call.hands_over) meeting = connector.ToDecode(start.call.kv_source, "")->parameters;
    if (meeting.empty()) {
      rank.streams[number] = std::make_shared<EngineStream>();
      Posted([r, member, number](EngineServer& server) {
        server.OnCallEnded(r, member, number, absl::ResourceExhaustedError("its prompt has not begun"));
      })();
      return;
    }
    start.call.hand_off = std::make_shared<const RequestHandOff>(RequestHandOff{meeting});
  }
  EngineClient::StreamCallbacks callbacks;
  callbacks.on_tokens = Posted([r, member, number](EngineServer& server, EngineTokens tokens) {
    server.Tell(r, member, &EngineRank::OnTokens, number, std::move(tokens));
    server.OnOutput(r, member);
  });
  callbacks.on_end = Posted([r, member, number](EngineServer& server, absl::StatusOr<EngineEnd> end) {
    server.OnCallEnded(r, member, number, std::move(end));
  });
  // An engine that reports a single rank may distribute calls over several ranks itself, so none is named.
  std::optional<int32_t> where;
  if (several) where = static_cast<int32_t>(r);
  rank.streams[number] = client_->Generate(start.call, where, name, std::move(callbacks));
}

void EngineServer::OnCallEnded(size_t r, MemberId member, CallNumber number, absl::StatusOr<EngineEnd> end) {
  Rank* rank = Find(r, member);
  if (rank == nullptr) return;
  const auto stream = rank->streams.find(number);
  if (stream == rank->streams.end()) return;
  closing_.emplace_back(MonotonicNow(), stream->second);
  rank->streams.erase(stream);
  if (end.ok() && end->hand_off != nullptr && !end->hand_off->source.empty()) {
    // Where a rank keeps its KV does not change while it runs.
    const std::string source = absl::StrCat(end->hand_off->engine, " at ", end->hand_off->source);
    if (rank->kv_source.empty()) rank->kv_source = source;
    if (rank->kv_source != source)
      end = WrongHandOff(
          absl::UnavailableError(absl::StrCat("its hand-off of a prompt cannot be right: it names ", source,
                                              ", and earlier ones ", rank->kv_source)));
  }
  if (end.ok() && end->hand_off != nullptr && !end->hand_off->parameters.empty() &&
      KvConnectorOf(description_.kv_connector).frees_refused()) {
    RequestHandOff hand_off = *end->hand_off;
    hand_off.kept =
        std::make_shared<KeptKv>(Posted([parameters = hand_off.parameters](const EngineServer& server) {
          server.servers_->free(parameters);
        }));
    end->hand_off = std::make_shared<const RequestHandOff>(std::move(hand_off));
  }
  if (IsWrongHandOff(end.status())) {
    if (const auto more = lines_.Pass("hand-off"))
      spdlog::warn("engine {}: {}{}", name_, PeerText(end.status().message()), *more);
  }
  if (MayBeLost(end.status())) {
    unchecked_.push_back({r, member, number, end.status()});
    return CheckSoon();
  }
  if (!end.ok()) return Tell(r, member, &EngineRank::OnFailed, number, end.status());
  Tell(r, member, &EngineRank::OnFinished, number, *std::move(end));
  OnOutput(r, member);
}

void EngineServer::OnOutput(size_t r, MemberId member) {
  Rank* const rank = Find(r, member);
  if (rank == nullptr) return;
  last_output_ = MonotonicNow();
  if (rank->machine->on_trial()) return;
  // Reset by output and not by the first plan, because an engine that hangs accepts plans too.
  rank->retry = absl::ZeroDuration();
  rank->on_trial = false;
}

}  // namespace bfio::router
