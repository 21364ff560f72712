#include "router/app/decision_thread.h"

#include <pthread.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <utility>
#include <variant>

#include "common/base/spdlog.h"
#include "common/base/status_macros.h"
#include "common/telemetry/log_fields.h"
#include "router/requests/retry.h"

namespace bfio::router {
namespace {

// std::visit(Overloaded{[](const A&) {..}, [](const B&) {..}}, variant)
template <typename... Fs>
struct Overloaded : Fs... {
  using Fs::operator()...;
};
template <typename... Fs>
Overloaded(Fs...) -> Overloaded<Fs...>;

// How often connections are checked for workers that read nothing.
constexpr absl::Duration kChannelCheck = absl::Milliseconds(500);

// Ends the process, because another router may decide by now. As after a crash, the next router recovers the
// requests that workers hold.
[[noreturn]] void EndWithoutLease() {
  spdlog::critical("the election lease is lost: another router may lead now; this router exits");
  spdlog::default_logger()->flush();
  std::_Exit(EXIT_FAILURE);
}

spdlog::level::level_enum LevelOf(LogLine::Level level) {
  switch (level) {
    case LogLine::Level::kDebug: return spdlog::level::debug;
    case LogLine::Level::kInfo: return spdlog::level::info;
    case LogLine::Level::kWarning: return spdlog::level::warn;
  }
  return spdlog::level::info;
}

// The longest prompt + output that more than half of the ranks accept, whichever values single ranks state; 0
// without ranks.
int64_t UsualSequenceTokens(absl::Span<const GroupCapacity> groups) {
  std::vector<int64_t> all;
  for (const GroupCapacity& group : groups)
    all.insert(all.end(), group.sequence_tokens.begin(), group.sequence_tokens.end());
  if (all.empty()) return 0;
  const auto middle = all.begin() + static_cast<std::ptrdiff_t>(all.size() / 2);
  std::nth_element(all.begin(), middle, all.end(), std::greater<>());
  return *middle;
}

void Write(const LogLine& line) {
  std::vector<LogField> fields = {{"group", line.group}, {"worker", line.worker}};
  if (line.epoch > 0) fields.emplace_back("epoch", line.epoch);
  const ScopedLogFields scope(std::move(fields));
  spdlog::log(LevelOf(line.level), "{}", line.text);
}

}  // namespace

DecisionThread::DecisionThread(const RouterOptions& options, Parts parts, Hooks hooks)
    : options_(options),
      hooks_(std::move(hooks)),
      ids_(parts.first_id),
      budget_(std::move(parts.budget)),
      tenants_(options_.tenant_limits),
      overload_(options_.overload()),
      recorder_(std::move(parts.recorder)),
      cluster_(options_.scheduler(), options_.policy, std::move(parts.policies), std::move(parts.lookahead),
               recorder_.get()),
      requests_(options_.requests(), &cluster_, &tenants_, &overload_, MonotonicNow()),
      groups_(options_.group_set(parts.instance), &cluster_, &requests_),
      now_(MonotonicNow()),
      started_(now_),
      thread_([this] { Run(); }) {}

DecisionThread::~DecisionThread() {
  Stop();
}

// --- any thread ---

absl::Status DecisionThread::PostClient(int64_t limit, Event event) {
  if (events_.PostBounded(std::move(event), static_cast<size_t>(limit))) return absl::OkStatus();
  if (stop_requested_.load()) return ShuttingDown();
  return WithRetry(absl::ResourceExhaustedError("the router is overloaded"), kFullRetry);
}

absl::Status DecisionThread::Submit(ClientRequest request, std::vector<Output> outputs) {
  const auto count = static_cast<int64_t>(outputs.size());
  std::vector<TenantLimiter::Ticket> tickets(outputs.size());
  if (!request.resume_proven) {
    BFIO_RETURN_IF_ERROR(tenants_.Prepare(request));
  }
  if (!request.resume_from) {
    // A flood of requests is refused here, before it reaches the decision thread.
    if (absl::Status status = overload_.CheckPool(request.tenant, count, request.rank.has_value());
        !status.ok())
      return absl::IsResourceExhausted(status) ? WithRetry(std::move(status), kFullRetry) : status;
    BFIO_ASSIGN_OR_RETURN(tickets, tenants_.EnterAll(request, outputs.size(), MonotonicNow()));
  }
  // The memory of the events in the mailbox is bounded too.
  const int64_t bytes = count * request.prompt_bytes();
  const auto take_out = [this, count, bytes] {
    mailbox_requests_.fetch_sub(count);
    mailbox_bytes_.fetch_sub(bytes);
  };
  const bool too_many = mailbox_requests_.fetch_add(count) + count > ArrivalsLimit();
  const bool too_large = mailbox_bytes_.fetch_add(bytes) + bytes > options_.max_waiting_bytes;
  if (too_many || too_large) {
    take_out();
    return WithRetry(absl::ResourceExhaustedError("the router is overloaded"), kFullRetry);
  }
  std::vector<Arrival> arrivals(outputs.size());
  for (size_t i = outputs.size(); i-- > 0;) {
    // The first output comes last, because it takes over the prompt.
    arrivals[i] = {outputs[i].id, i > 0 ? OutputOf(request, static_cast<uint32_t>(i)) : std::move(request),
                   std::move(outputs[i].sink), std::move(tickets[i])};
  }
  // One event, so that the decision thread gets the call whole or not at all.
  absl::Status posted =
      PostClient(ArrivalsLimit(), [this, take_out, arrivals = std::move(arrivals)]() mutable {
        take_out();
        if (arrivals.size() > 1) return requests_.OnCall(std::move(arrivals), now_);
        const std::string& model = arrivals[0].request.model;
        if (!model.empty() && groups_.ExpectModel(model, now_)) OnMembershipChanged();
        requests_.OnArrival(std::move(arrivals[0]), now_);
      });
  if (!posted.ok()) take_out();
  return posted;
}

void DecisionThread::Cancel(uint64_t sink_id, bool timed_out) {
  // Not bounded: there is at most one per open stream.
  events_.Post([this, sink_id, timed_out] { requests_.OnCancel(sink_id, timed_out, now_); });
}

absl::Status DecisionThread::Abort(AbortRequest request,
                                   absl::AnyInvocable<void(absl::StatusOr<bool>) &&> done) {
  return PostClient(CallsLimit(), [this, request = std::move(request), done = std::move(done)]() mutable {
    std::move(done)(requests_.Abort(request.tenant, request.request_id, request.resume_token, now_));
  });
}

absl::Status DecisionThread::GetLoads(std::optional<uint32_t> rank,
                                      absl::AnyInvocable<void(absl::StatusOr<Loads>) &&> done) {
  return PostClient(CallsLimit(),
                    [this, rank, done = std::move(done)]() mutable { std::move(done)(MakeLoads(rank)); });
}

void DecisionThread::OnWorkerEvent(std::shared_ptr<WorkerChannel> channel, WorkerEvent event) {
  // Bounded by the channel, which stops reading until Consumed.
  events_.PostAhead([this, channel = std::move(channel), event = std::move(event)]() mutable {
    OnEvent(channel, std::move(event));
    channel->Consumed();
  });
}

absl::Status DecisionThread::State(absl::AnyInvocable<void(absl::StatusOr<RouterState>) &&> done) {
  return PostClient(OperatorsLimit(),
                    [this, done = std::move(done)]() mutable { std::move(done)(MakeState()); });
}

absl::Status DecisionThread::DrainWorker(std::string worker_id, Done done) {
  return PostClient(OperatorsLimit(),
                    [this, worker_id = std::move(worker_id), done = std::move(done)]() mutable {
                      std::move(done)(groups_.Drain(worker_id, now_, commands_));
                      CarryOut();
                    });
}

absl::Status DecisionThread::UndrainWorker(std::string worker_id, Done done) {
  return PostClient(OperatorsLimit(),
                    [this, worker_id = std::move(worker_id), done = std::move(done)]() mutable {
                      std::move(done)(groups_.Undrain(worker_id, commands_));
                      CarryOut();
                    });
}

absl::Status DecisionThread::SetPolicy(PolicyChange change, Done done) {
  return PostClient(OperatorsLimit(), [this, change = std::move(change), done = std::move(done)]() mutable {
    std::move(done)(ChangePolicy(change));
  });
}

absl::Duration DecisionThread::SinceLastIteration() const {
  return MonotonicNow() - last_iteration_.load(std::memory_order_relaxed);
}

void DecisionThread::Stop() {
  if (!stop_requested_.exchange(true)) {
    events_.Post([this] {
      draining_ = true;
      drain_deadline_ = now_ + options_.drain_timeout;
      requests_.BeginDrain(now_);
    });
  }
  if (thread_.joinable()) thread_.join();
}

// --- the thread ---

void DecisionThread::Run() {
  // Shown by top -H and perf.
  pthread_setname_np(pthread_self(), "bfio-decide");
  while (!RunOnce()) {
  }
  // Events posted before Close get an answer; later ones are refused.
  events_.Close();
  events_.WaitAndTake(absl::ZeroDuration(), worker_events_, client_events_);
  for (Event& event : worker_events_) std::move(event)();
  for (Event& event : client_events_) std::move(event)();
  for (const auto& [member, channel] : channels_) channel->Close(ShuttingDown());
  sender_.Submit(requests_.flushes());
  if (recorder_ != nullptr) recorder_->Close();
}

bool DecisionThread::RunOnce() {
  events_.WaitAndTake(std::min(UntilNextDeadline(), kLongestWait), worker_events_, client_events_);
  now_ = MonotonicNow();
  last_iteration_.store(now_, std::memory_order_relaxed);
  if (options_.lease != nullptr && !options_.lease->Check()) EndWithoutLease();
  requests_.SetTime(now_);
  for (Event& event : worker_events_) std::move(event)();
  RunTimers();
  // Tokens are sent before decisions are made.
  sender_.Submit(requests_.flushes());
  for (Event& event : client_events_) std::move(event)();
  Decide();
  overload_.SetWaiting(cluster_.waiting());
  const bool done = draining_ && DrainDone();
  sender_.Submit(requests_.flushes());
  if (recorder_ != nullptr) recorder_->Flush();
  return done;
}

void DecisionThread::OnEvent(const std::shared_ptr<WorkerChannel>& channel, WorkerEvent event) {
  const MemberId member = channel->id();
  std::visit(
      Overloaded{[&](WorkerHello& hello) {
                   channels_[member] = channel;
                   watched_.push_back(channel);
                   next_channel_check_ = std::min(next_channel_check_, now_ + kChannelCheck);
                   groups_.OnHello(member, std::move(hello), now_, commands_);
                 },
                 [&](Announcement& announcement) {
                   groups_.OnAnnouncement(member, std::move(announcement), now_, commands_);
                 },
                 [&](EpochReady& ready) { groups_.OnEpochReady(member, std::move(ready), now_, commands_); },
                 [&](StepReport& report) { groups_.OnReport(member, report, now_, commands_); },
                 [&](Leave& leave) { groups_.OnLeave(member, leave.reason, now_, commands_); },
                 [&](ProtocolError& error) { groups_.Expel(member, error.status, now_, commands_); },
                 [&](Gone&) {
                   groups_.OnGone(member, now_, commands_);
                   energy_.Forget(member);
                   channels_.erase(member);
                 }},
      event);
  CarryOut();
}

void DecisionThread::RunTimers() {
  if (now_ >= groups_.next_deadline()) groups_.OnTimer(now_, commands_);
  CarryOut();
  OnMembershipChanged();
  if (now_ >= requests_.next_deadline()) requests_.OnTimer(now_);
  if (now_ >= next_channel_check_) BreakOffStuckChannels();
}

absl::Duration DecisionThread::UntilNextDeadline() const {
  absl::Time next = std::min({groups_.next_deadline(), requests_.next_deadline(), next_channel_check_});
  if (draining_) next = std::min(next, drain_deadline_);
  const absl::Time now = MonotonicNow();
  if (options_.lease != nullptr) next = std::min(next, now + options_.lease->Left());
  return std::max(absl::ZeroDuration(), next - now);
}

void DecisionThread::Decide() {
  // A decision may make an earlier group's decision due. That group then decides in the next iteration, which
  // its own report triggers; unless a prompt was placed, whose request waits for another group.
  do {
    DecideOnce();
  } while (requests_.TakePromptsPlaced());
  groups_.Settle(now_, commands_);
  CarryOut();
}

void DecisionThread::DecideOnce() {
  for (const core::GroupIndex index : cluster_.DecisionOrder()) {
    Group* group = groups_.Find(index);
    if (group == nullptr) continue;
    for (;;) {
      const absl::Time before = MonotonicNow();
      if (budget_ != nullptr) budget_->Begin(before);
      const core::PlacementRule rule = cluster_.group(index)->chooser().rule();
      if (!group->Decide(now_, commands_)) break;
      const core::RuleChooser& chooser = cluster_.group(index)->chooser();
      if (chooser.rule() != rule) {
        spdlog::info("group {}: {} follows {}", group->options().name, cluster_.policy_setting().name,
                     core::DescribeChoice(chooser, rule));
      }
      const absl::Duration took = MonotonicNow() - before;
      CarryOut(RanksBefore(index));
      group->Decided(took, commands_);
      CarryOut();
    }
  }
}

bool DecisionThread::DrainDone() {
  if (requests_.live() > 0 && now_ < drain_deadline_) return false;
  requests_.EndAll(now_);
  return true;
}

void DecisionThread::BreakOffStuckChannels() {
  std::erase_if(watched_, [](const auto& channel) { return channel.expired(); });
  for (const std::weak_ptr<WorkerChannel>& weak : watched_) {
    const std::shared_ptr<WorkerChannel> channel = weak.lock();
    if (channel != nullptr && channel->BreakOffIfStuck(now_, options_.step_timeout))
      spdlog::warn("the worker at {} has not read its messages within --step_timeout and is disconnected",
                   channel->peer());
  }
  next_channel_check_ = watched_.empty() ? absl::InfiniteFuture() : now_ + kChannelCheck;
}

WorkerChannel* DecisionThread::ChannelOf(MemberId member) const {
  const auto it = channels_.find(member);
  return it == channels_.end() ? nullptr : it->second.get();
}

void DecisionThread::CarryOut(uint32_t rank_offset) {
  const auto to = [&](MemberId member, auto&& send) {
    if (WorkerChannel* channel = ChannelOf(member); channel != nullptr) send(*channel);
  };
  const Overloaded carry_out{
      [&](const SendEpoch& c) { to(c.to, [&](WorkerChannel& channel) { channel.SendEpoch(c.epoch); }); },
      [&](const SendPlan& c) {
        assignments_.clear();
        for (const core::Placement& placed : c.plan.placements) {
          const auto rank = rank_offset + static_cast<uint32_t>(placed.worker);
          if (auto assignment = requests_.OnPlaced(placed.id, rank, placed.wait_steps, now_, c.plan.model))
            assignments_.push_back(*assignment);
        }
        to(c.to, [&](WorkerChannel& channel) { channel.SendPlan(c.plan, assignments_); });
      },
      [&](const SendNotice& c) { to(c.to, [&](WorkerChannel& channel) { channel.SendNotice(c.text); }); },
      [&](const SendShutdown& c) {
        to(c.to, [&](WorkerChannel& channel) { channel.SendShutdown(c.reason); });
      },
      [&](const CloseMember& c) {
        to(c.to, [&](WorkerChannel& channel) { channel.Close(c.status); });
        energy_.Forget(c.to);
        channels_.erase(c.to);
      },
      [&](const GeneratedTokens& c) { requests_.OnTokens(c.id, c.tokens, c.logprobs, now_, c.messages); },
      [&](const RequestFinished& c) { requests_.OnFinished(c.id, c.reason, now_, c.generated); },
      [&](const RequestRejected& c) { requests_.OnRejected(c.id, c.status, now_); },
      [&](const RequestPreempted& c) { requests_.OnPreempted(c.id, now_, c.hand_off); },
      [&](const RequestLost& c) { requests_.OnLost(c.id, now_); },
      [&](const EpochOpened&) {
        OnMembershipChanged();
        requests_.OnEpochOpened(now_);
      },
      [&](const EpochClosed&) { OnMembershipChanged(); },
      [&](const StepDone& c) {
        if (hooks_.on_step) hooks_.on_step(c.summary);
      },
      [&](const EnergyReported& c) { energy_.Take(c.member, c.reading); },
      [&](const LogLine& c) { Write(c); }};
  for (const Command& command : commands_) std::visit(carry_out, command);
  commands_.clear();
}

void DecisionThread::OnMembershipChanged() {
  GroupsView view;
  view.capacities = groups_.capacities();
  max_sequence_tokens_.store(UsualSequenceTokens(view.capacities), std::memory_order_relaxed);
  view.shortest_step = groups_.shortest_step();
  view.complete = groups_.complete();
  view.expects_announcements = groups_.ExpectsAnnouncements();
  view.models = groups_.models();
  for (const std::unique_ptr<Group>& group : groups_.groups()) {
    const core::GroupIndex index = group->options().index;
    view.ranks.push_back({.group = index,
                          .ranks = group->serving() ? cluster_.group(index)->num_workers() : 0,
                          .returns = !group->serving() && group->returns(),
                          .hands_over = group->hands_over()});
    if (!group->serving()) continue;
    view.in_parallel |= group->in_parallel();
    view.computes_none |= group->computes_none();
    if (!group->hands_over()) continue;
    view.hands_over = true;
    for (MemberView& member : group->Members()) view.prefill_engines.insert(std::move(member.kv_engine_id));
    view.prefill_engines.erase("");
  }
  hands_over_.store(view.hands_over, std::memory_order_relaxed);
  requests_.SetGroups(std::move(view));
  computes_none_.store(requests_.computes_none(), std::memory_order_relaxed);
  ready_.store(groups_.ready(), std::memory_order_relaxed);
  if (groups_.ready() == serving_) return;
  serving_ = !serving_;
  if (hooks_.on_serving) hooks_.on_serving(serving_);
}

uint32_t DecisionThread::RanksBefore(core::GroupIndex group) const {
  uint32_t ranks = 0;
  for (const std::unique_ptr<Group>& other : groups_.groups()) {
    if (other->options().index >= group) break;
    if (other->serving())
      ranks += static_cast<uint32_t>(cluster_.group(other->options().index)->num_workers());
  }
  return ranks;
}

absl::Status DecisionThread::ChangePolicy(const PolicyChange& change) {
  core::PolicySetting setting = cluster_.policy_setting();
  setting.name = change.name;
  if (change.horizon) setting.options.horizon = *change.horizon;
  if (!change.objective.empty()) setting.options.objective = change.objective;
  absl::Status status = cluster_.Apply(core::SetPolicy{std::move(setting)}).status;
  if (status.ok()) spdlog::info("policy changed to {}", change.name);
  return status;
}

StreamSender::StreamSender() : thread_([this] { Run(); }) {}

StreamSender::~StreamSender() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
  }
  thread_.join();
}

void StreamSender::Submit(std::vector<std::shared_ptr<TokenSink>>& streams) {
  if (streams.empty()) return;
  MutexLock lock(&mutex_);
  if (queue_.empty()) {
    queue_.swap(streams);
  } else {
    queue_.insert(queue_.end(), std::make_move_iterator(streams.begin()),
                  std::make_move_iterator(streams.end()));
    streams.clear();
  }
}

void StreamSender::Run() {
  std::vector<std::shared_ptr<TokenSink>> batch;
  for (;;) {
    {
      MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(this, &StreamSender::Ready));
      if (queue_.empty()) return;
      batch.swap(queue_);
    }
    for (const auto& stream : batch) stream->Flush();
    batch.clear();
  }
}

}  // namespace bfio::router
