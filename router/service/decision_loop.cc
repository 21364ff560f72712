#include "router/service/decision_loop.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "common/net/status.h"
#include "router/core/shadow/shadowed_policy.h"

namespace bfio::router {
namespace {

// When a client that was refused for want of room should try again.
constexpr absl::Duration kPoolFullRetry = absl::Milliseconds(500);
constexpr absl::Duration kUnavailableRetry = absl::Seconds(1);
// How often workers' streams are looked at.
constexpr absl::Duration kSessionCheck = absl::Milliseconds(500);
// Refusals by workers that a request survives: the accounts are exact, so even one is a sign of trouble.
constexpr int kMaxRefusals = 16;

core::SchedulerOptions CoreOptions(const RouterOptions& options) {
  core::SchedulerOptions core;
  core.plan_mode = options.plan_mode;
  core.max_waiting = options.max_waiting;
  core.window = options.window > 0 ? options.window : options.max_waiting;
  return core;
}

std::unique_ptr<record::Recorder> MakeRecorder(std::unique_ptr<record::LogSink> log,
                                               const RouterOptions& options, core::RequestId id_base) {
  if (log == nullptr) return nullptr;
  return std::make_unique<record::Recorder>(
      std::move(log), record::SessionInfo{options.version, id_base}, CoreOptions(options),
      record::PolicySetting{options.policy, options.policy_options}, options.lookahead);
}

absl::Status WithRetry(absl::Status status, absl::Duration delay) {
  SetRetryDelay(status, delay);
  return status;
}

absl::Status ShuttingDown() {
  return WithRetry(absl::UnavailableError("the router is shutting down"), kUnavailableRetry);
}

}  // namespace

DecisionLoop::DecisionLoop(const RouterOptions& options, std::unique_ptr<core::Policy> policy,
                           std::unique_ptr<core::Lookahead> lookahead, Hooks hooks,
                           std::shared_ptr<DecideBudget> decide_budget,
                           std::unique_ptr<record::LogSink> decision_log)
    : options_(options),
      hooks_(std::move(hooks)),
      decide_budget_(std::move(decide_budget)),
      policy_options_(options.policy_options),
      // Above whatever an earlier router gave out: workers may still hold requests of that one.
      next_id_(static_cast<core::RequestId>(absl::ToUnixMillis(absl::Now())) << 20),
      instance_(static_cast<uint64_t>(absl::ToUnixNanos(absl::Now()))),
      tenant_limiter_(options_.tenant_limits),
      scheduler_(CoreOptions(options), std::move(policy), std::move(lookahead),
                 MakeRecorder(std::move(decision_log), options, next_id_.load())),
      group_(options_, instance_, this),
      recorder_(hooks_.on_step),
      budget_(options_.replay_budget_bytes, options_.replay_request_bytes),
      now_(MonotonicNow()),
      started_(now_),
      settle_end_(started_ + options_.restart_settle),
      thread_([this] { Run(); }) {}

DecisionLoop::~DecisionLoop() {
  Stop();
}

// --- any thread ---

bool DecisionLoop::Post(absl::AnyInvocable<void(DecisionLoop&) &&> event) {
  return events_.Post([this, event = std::move(event)]() mutable { std::move(event)(*this); });
}

absl::Status DecisionLoop::PostArrival(core::RequestId id, v1::GenerateRequest request,
                                       std::shared_ptr<ClientStream> stream) {
  const auto limit = static_cast<size_t>(options_.max_waiting) * 2 + 1024;
  TenantLimiter::Ticket ticket;
  if (!request.has_resume_from_index()) {
    // A flood is refused here, where it costs the decision thread nothing.
    if (waiting_hint_.load(std::memory_order_relaxed) >= options_.max_waiting) {
      refused_full_.fetch_add(1, std::memory_order_relaxed);
      return WithRetry(absl::ResourceExhaustedError(
                           absl::StrCat("the waiting pool is full (", options_.max_waiting, " requests)")),
                       kPoolFullRetry);
    }
    auto entered = EnterTenant(request);
    if (!entered.ok()) return entered.status();
    ticket = *std::move(entered);
  }
  const bool posted = events_.PostBounded(
      [this, id, request = std::move(request), stream = std::move(stream),
       ticket = std::move(ticket)]() mutable {
        OnArrival(id, std::move(request), std::move(stream), std::move(ticket));
      },
      limit);
  if (posted) return absl::OkStatus();
  if (stop_requested_.load()) return ShuttingDown();
  return WithRetry(absl::ResourceExhaustedError("the router is overloaded"), kPoolFullRetry);
}

absl::StatusOr<TenantLimiter::Ticket> DecisionLoop::EnterTenant(const v1::GenerateRequest& request) {
  const int64_t tokens = int64_t{PromptTokens(request)} + request.max_new_tokens();
  auto entered = tenant_limiter_.Enter(request.tenant(), tokens, MonotonicNow());
  if (!entered.ok()) refused_tenant_.fetch_add(1, std::memory_order_relaxed);
  return entered;
}

void DecisionLoop::PostCancel(uint64_t stream_id, bool timed_out) {
  events_.Post([this, stream_id, timed_out] { OnCancel(stream_id, timed_out); });
}

void DecisionLoop::PostWorkerMessage(std::shared_ptr<WorkerSession> session, v1::WorkerMessage message) {
  events_.Post([this, session = std::move(session), message = std::move(message)] {
    OnWorkerMessage(session, message);
    session->Consumed();
  });
}

void DecisionLoop::PostWorkerGone(std::shared_ptr<WorkerSession> session) {
  events_.Post([this, session = std::move(session)] { group_.OnGone(session.get(), now_); });
}

void DecisionLoop::Stop() {
  if (!stop_requested_.exchange(true)) {
    events_.Post([this] {
      draining_ = true;
      drain_deadline_ = now_ + options_.drain_timeout;
      if (live() > 0) spdlog::info("draining {} requests", live());
    });
  }
  if (thread_.joinable()) thread_.join();
}

// --- the thread ---

void DecisionLoop::Run() {
  std::vector<EventQueue::Event> batch;
  for (bool done = false; !done;) {
    events_.WaitAndTake(UntilNextDeadline(MonotonicNow()), batch);
    now_ = MonotonicNow();
    for (EventQueue::Event& event : batch) std::move(event)();
    RunTimers(now_);
    Decide(false);
    if (scheduler_.Parked()) recorder_.OnParked(scheduler_.waiting());
    ReleaseDrained();
    waiting_hint_.store(scheduler_.waiting(), std::memory_order_relaxed);
    done = draining_ && DrainDone(now_);
    sender_.Submit(outbox_);
    scheduler_.FlushLog();
  }
  // Who posted before Close gets an answer, who comes later is told by Post.
  events_.Close();
  events_.WaitAndTake(absl::ZeroDuration(), batch);
  for (EventQueue::Event& event : batch) std::move(event)();
  for (Member* member : group_.members()) {
    member->session->Close(grpc::Status(grpc::StatusCode::UNAVAILABLE, "the router is shutting down"));
  }
  sender_.Submit(outbox_);
  scheduler_.CloseLog();
}

bool DecisionLoop::DrainDone(absl::Time now) {
  for (EarlyResume& early : std::exchange(early_resumes_, {})) {
    EndStream(early.stream, ToGrpcStatus(ShuttingDown()), std::nullopt);
  }
  if (live() > 0 && now < drain_deadline_) return false;
  for (const core::RequestId id : requests_.Ids()) {
    RequestRecord* record = requests_.Find(id);
    if (!record->ended) Fail(*record, ShuttingDown());
  }
  return true;
}

absl::Duration DecisionLoop::UntilNextDeadline(absl::Time now) {
  absl::Time next = std::min({group_.next_deadline(), report_deadline_, stall_deadline_});
  if (!resume_deadlines_.empty()) next = std::min(next, resume_deadlines_.front().first);
  if (!lingering_.empty()) next = std::min(next, lingering_.front().first);
  if (!early_resumes_.empty()) next = std::min(next, settle_end_);
  next = std::min(next, next_session_check_);
  if (draining_) next = std::min(next, drain_deadline_);
  return std::max(absl::ZeroDuration(), next - now);
}

void DecisionLoop::RunTimers(absl::Time now) {
  if (now >= group_.next_deadline()) group_.OnTimer(now);
  ExpireResumes(now);
  if (now >= next_session_check_) CheckSessions(now);
  if (now >= report_deadline_) {
    report_deadline_ = absl::InfiniteFuture();
    if (group_.serving() && scheduler_.ReportsMissing()) Decide(true);
  }
  if (now >= stall_deadline_) {
    stall_deadline_ = absl::InfiniteFuture();
    if (group_.serving() && !scheduler_.Parked()) {
      group_.OnBarrierError(*group_.ranks().front(), "no rank has reported a step in time", {}, now);
    }
  }
}

// --- clients ---

void DecisionLoop::OnArrival(core::RequestId id, v1::GenerateRequest request,
                             std::shared_ptr<ClientStream> stream, TenantLimiter::Ticket ticket) {
  const auto refuse = [&](const absl::Status& status) {
    if (stream->End(ToGrpcStatus(status), std::nullopt)) FlushLater(stream);
  };
  if (draining_) return refuse(ShuttingDown());
  const bool restarts = request.has_resume_from_index();
  if (restarts) {
    if (Resume(id, request, stream)) return;
    // Nobody loses a running request to his own limits because the router died.
    if (now_ - started_ > options_.resume_timeout) {
      auto entered = EnterTenant(request);
      if (!entered.ok()) return refuse(entered.status());
      ticket = *std::move(entered);
    }
  }
  const std::string name = request.request_id();
  RequestRecord* record = requests_.Add(id, std::move(request), stream, now_);
  if (record == nullptr) {
    totals_.set_refused_invalid(totals_.refused_invalid() + 1);
    return refuse(absl::AlreadyExistsError(absl::StrCat("a live request has the request_id ", name)));
  }
  record->ticket = std::move(ticket);
  if (restarts) TakeReceived(*record);
  absl::Status status = CheckFits(*record);
  if (absl::Status room = CheckRoom(*record); status.ok() && !room.ok()) {
    totals_.set_refused_memory(totals_.refused_memory() + 1);
    status = WithRetry(std::move(room), kPoolFullRetry);
  } else if (status.ok()) {
    core::RequestSpec spec = record->Spec();
    if (record->delivered > 0 && now_ - started_ <= options_.resume_timeout) spec.priority += BegunBonus();
    status = scheduler_.Enqueue(spec);
    if (absl::IsResourceExhausted(status)) {
      totals_.set_refused_pool_full(totals_.refused_pool_full() + 1);
      SetRetryDelay(status, kPoolFullRetry);
    }
  } else {
    totals_.set_refused_invalid(totals_.refused_invalid() + 1);
  }
  if (!status.ok()) {
    requests_.Erase(id);
    return refuse(status);
  }
  totals_.set_accepted(totals_.accepted() + 1);
  tenants_.OnAccepted(record->tenant, record->request.tenant(), PromptTokens(record->request));
  Commit(*record);
  if (record->send_from < record->delivered) {
    stream->CatchUp(record->send_from, absl::MakeConstSpan(record->history).subspan(record->send_from));
    FlushLater(stream);
  }
}

void DecisionLoop::OnCancel(uint64_t stream_id, bool timed_out) {
  RequestRecord* record = requests_.FindByStream(stream_id);
  if (record == nullptr) {  // ended meanwhile, or not yet begun
    const auto early = std::find_if(early_resumes_.begin(), early_resumes_.end(),
                                    [&](const EarlyResume& e) { return e.stream->id() == stream_id; });
    if (early == early_resumes_.end()) return;
    EndStream(early->stream, grpc::Status::CANCELLED, std::nullopt);
    early_resumes_.erase(early);
    return;
  }
  if (record->request.resumable() && !timed_out) return Detach(*record, grpc::Status::CANCELLED);
  scheduler_.Cancel(record->id);
  totals_.set_cancelled(totals_.cancelled() + 1);
  End(*record, grpc::Status::CANCELLED, std::nullopt);
}

bool DecisionLoop::Abort(const std::string& request_id, const std::optional<std::string>& tenant) {
  RequestRecord* record = requests_.FindByName(request_id);
  if (record == nullptr || (tenant.has_value() && *tenant != record->request.tenant())) return false;
  if (record->ended) {  // nothing left to abort, but its id is free now
    End(*record, grpc::Status::OK, std::nullopt);
    return false;
  }
  scheduler_.Cancel(record->id);
  totals_.set_aborted(totals_.aborted() + 1);
  End(*record, grpc::Status::OK, record->MakeFinish(v1::FINISH_REASON_ABORT, now_));
  return true;
}

void DecisionLoop::End(RequestRecord& record, grpc::Status status, std::optional<v1::Finish> finish) {
  if (record.stream != nullptr) EndStream(record.stream, std::move(status), std::move(finish));
  if (record.ended) --ended_count_;
  Uncommit(record);
  budget_.Release(record.kept_bytes);
  requests_.Erase(record.id);
}

void DecisionLoop::EndStream(const std::shared_ptr<ClientStream>& stream, grpc::Status status,
                             std::optional<v1::Finish> finish) {
  if (stream->End(std::move(status), std::move(finish))) FlushLater(stream);
  lingering_.emplace_back(now_ + options_.stream.timeout, stream);
}

void DecisionLoop::Complete(RequestRecord& record, v1::FinishReason reason) {
  const v1::Finish finish = record.MakeFinish(reason, now_);
  if (reason == v1::FINISH_REASON_LENGTH && record.delivered != record.request.max_new_tokens()) {
    CountTokens(record.request.max_new_tokens(), record.delivered);
    return Fail(record, absl::InternalError("the worker ended the request before its last token"));
  }
  totals_.set_completed(totals_.completed() + 1);
  tenants_.OnCompleted(record.tenant, record.request.tenant());
  if (spdlog::should_log(spdlog::level::debug))
    spdlog::debug("request {}: completed with {} tokens", record.LogName(), record.delivered);
  latencies_.OnCompleted(finish.usage().prompt_tokens(), record.delivered - record.had,
                         now_ - record.accepted, now_ - record.first_token.value_or(now_));
  if (record.request.resumable()) return Retain(record, finish);
  End(record, grpc::Status::OK, finish);
}

void DecisionLoop::Fail(RequestRecord& record, const absl::Status& status) {
  scheduler_.Cancel(record.id);
  totals_.set_failed(totals_.failed() + 1);
  if (spdlog::should_log(spdlog::level::debug))
    spdlog::debug("request {}: {}", record.LogName(), std::string(status.message()));
  End(record, ToGrpcStatus(status), std::nullopt);
}

// --- workers ---

void DecisionLoop::OnWorkerMessage(const std::shared_ptr<WorkerSession>& session,
                                   const v1::WorkerMessage& message) {
  Member* member = group_.Find(session.get());
  if (message.has_hello() && member == nullptr) {
    group_.OnHello(session, message.hello(), now_);
    sessions_.push_back(session);
    next_session_check_ = std::min(next_session_check_, now_ + kSessionCheck);
    return;
  }
  if (member == nullptr) return;  // cut off, and does not know it yet
  switch (message.message_case()) {
    case v1::WorkerMessage::kAnnouncement:
      group_.OnAnnouncement(*member, message.announcement(), now_);
      return;
    case v1::WorkerMessage::kEpochReady:
      group_.OnEpochReady(*member, message.epoch_ready(), now_);
      return;
    case v1::WorkerMessage::kStepReport:
      OnStepReport(*member, message.step_report());
      return;
    case v1::WorkerMessage::kLeave:
      spdlog::info("worker {} asks to leave: {}", member->hello.worker_id(), message.leave().reason());
      OnLeave(*member);
      return;
    case v1::WorkerMessage::kHello:
    case v1::WorkerMessage::MESSAGE_NOT_SET:
      group_.Expel(*member, grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "unexpected message"), now_);
      return;
  }
}

void DecisionLoop::OnStepReport(Member& member, const v1::StepReport& report) {
  if (!member.rank || report.epoch() != member.spoken_epoch) return;  // of an epoch it has left
  const core::WorkerIndex rank = *member.rank;
  absl::Status status = ConvertReport(report, report_view_);
  if (status.ok()) {
    const int64_t drift_before = scheduler_.totals().drift_tokens;
    status = scheduler_.OnReport(rank, report_view_.core);
    if (scheduler_.totals().drift_tokens != drift_before) {
      spdlog::debug("rank {} step {}: drift of {} tokens", rank, report.step(),
                    scheduler_.totals().drift_tokens - drift_before);
    }
  }
  if (!status.ok()) {
    group_.Expel(member, ToGrpcStatus(status), now_);
    return;
  }
  group_.OnReport(member, report.step(), now_);
  DeliverTokens(rank, report);
  FinishRequests(rank, report);
  OnRejections(rank, report);
  TakeFigures(member, report);
  recorder_.OnReport(rank, report, now_);
  stall_deadline_ = now_ + 2 * options_.step_timeout;
  if (!scheduler_.ReportsMissing()) {
    report_deadline_ = absl::InfiniteFuture();
  } else if (report_deadline_ == absl::InfiniteFuture()) {
    report_deadline_ = now_ + options_.report_timeout;
  }
  if (!report.barrier_error().empty())
    group_.OnBarrierError(member, report.barrier_error(), report.missing_ranks(), now_);
}

void DecisionLoop::TakeFigures(Member& member, const v1::StepReport& report) {
  if (report.has_energy()) {
    std::vector<const WorkerFigures*> others;
    for (const Member* other : group_.members()) {
      if (other != &member) others.push_back(&other->figures);
    }
    energy_.Take(report.energy(), member.figures, others);
  }
  if (!report.has_cost()) return;
  std::optional<StepCostEstimate> cost = ConvertCost(report.cost());
  if (!cost) return;
  member.figures.cost = cost;
  UpdateTimes();
}

void DecisionLoop::UpdateTimes() {
  if (!options_.worker_speeds || !group_.serving()) return;
  const std::vector<Member*>& ranks = group_.ranks();
  std::vector<core::WorkerCost> costs;
  std::vector<core::WorkerTime> present;
  for (const Member* member : ranks) {
    const auto load = std::max<int64_t>(0, scheduler_.Account(*member->rank).load_tokens);
    costs.push_back({member->figures.cost, load});
    present.push_back(member->figures.time);
  }
  const std::vector<core::WorkerTime> times = core::TimesOf(costs, present);
  for (size_t g = 0; g < ranks.size(); ++g) {
    if (times[g] == present[g]) continue;
    ranks[g]->figures.time = times[g];
    scheduler_.SetTime(static_cast<core::WorkerIndex>(g), times[g].time_per_token, times[g].time_offset);
    spdlog::info("worker {}: a step counts as {:.2f} x load + {:.0f} tokens from now on",
                 ranks[g]->hello.worker_id(), times[g].time_per_token, times[g].time_offset);
  }
}

void DecisionLoop::DeliverTokens(core::WorkerIndex rank, const v1::StepReport& report) {
  int next = 0;
  for (int i = 0; i < report.handles_size(); ++i) {
    const int count = report.token_counts_size() == 0 ? 1 : static_cast<int>(report.token_counts(i));
    const int first = next;
    next += count;
    RequestRecord* record = requests_.Find(report.handles(i));
    if (record == nullptr || record->rank != rank) continue;  // cancelled meanwhile
    const uint32_t allowed = record->request.max_new_tokens() - record->delivered;
    Deliver(*record, absl::MakeConstSpan(report.token_ids().data() + first,
                                         std::min<size_t>(static_cast<size_t>(count), allowed)));
  }
}

void DecisionLoop::Deliver(RequestRecord& record, absl::Span<const uint32_t> tokens) {
  if (tokens.empty()) return;
  if (!record.first_token) {
    record.first_token = now_;
    latencies_.OnFirstToken(now_ - record.accepted);
    if (tokens.size() > 1) latencies_.OnTokens(tokens.size() - 1, absl::ZeroDuration());
  } else {
    latencies_.OnTokens(tokens.size(), now_ - record.last_token);
  }
  record.last_token = now_;
  tenants_.OnTokens(record.tenant, record.request.tenant(), tokens.size());
  waiting_bytes_ -= std::exchange(record.waiting_bytes, 0);
  const core::RequestId id = record.id;
  const uint32_t index = record.delivered;
  record.delivered += static_cast<uint32_t>(tokens.size());
  int64_t bytes = 0;
  if (record.keeps_history()) {
    record.history.insert(record.history.end(), tokens.begin(), tokens.end());
    bytes = int64_t{4} * static_cast<int64_t>(tokens.size());
    if (record.kept_bytes == 0) bytes = record.prompt_bytes() + int64_t{4} * record.delivered;
  }
  if (record.stream != nullptr && record.delivered > record.send_from) {
    const uint32_t skip = record.send_from > index ? record.send_from - index : 0;
    switch (record.stream->Deliver(index + skip, tokens.subspan(skip), now_)) {
      case ClientStream::Delivery::kTaken:
        break;
      case ClientStream::Delivery::kFlush:
        FlushLater(record.stream);
        break;
      case ClientStream::Delivery::kTooSlow:
        CutOff(record);
        break;
    }
  }
  if (bytes > 0) Keep(id, bytes);
}

void DecisionLoop::FinishRequests(core::WorkerIndex rank, const v1::StepReport& report) {
  for (const v1::Finished& finished : report.finished()) {
    RequestRecord* record = requests_.Find(finished.handle());
    if (record == nullptr || record->rank != rank) continue;
    Complete(*record,
             finished.reason() == v1::FINISH_REASON_STOP ? v1::FINISH_REASON_STOP : v1::FINISH_REASON_LENGTH);
  }
}

void DecisionLoop::OnRejections(core::WorkerIndex rank, const v1::StepReport& report) {
  for (const v1::Rejection& rejection : report.rejected()) {
    RequestRecord* record = requests_.Find(rejection.handle());
    if (record == nullptr || record->rank != rank) continue;
    spdlog::warn("rank {} refused request {}: {}", rank, record->LogName(), rejection.message());
    record->rank.reset();
    const bool room = rejection.code() == static_cast<uint32_t>(grpc::StatusCode::RESOURCE_EXHAUSTED);
    if (room && ++record->refusals < kMaxRefusals) {  // the core has put it back into the pool
      totals_.set_preempted(totals_.preempted() + 1);
      continue;
    }
    Fail(*record, room ? WithRetry(absl::UnavailableError("no worker takes the request"), kUnavailableRetry)
                       : absl::Status(static_cast<absl::StatusCode>(rejection.code()), rejection.message()));
  }
}

void DecisionLoop::OnLeave(Member& member) {
  member.draining = true;
  some_drain_ = true;
  if (member.rank) scheduler_.SetAcceptsNew(*member.rank, false);
}

void DecisionLoop::ReleaseDrained() {
  if (!some_drain_) return;
  some_drain_ = false;
  for (Member* member : group_.members()) {
    if (!member->draining) continue;
    if (MayLeave(*member)) {
      group_.Release(*member, now_);
    } else {
      some_drain_ = true;
    }
  }
}

void DecisionLoop::CheckSessions(absl::Time now) {
  sessions_.erase(
      std::remove_if(sessions_.begin(), sessions_.end(), [](const auto& s) { return s.expired(); }),
      sessions_.end());
  for (const std::weak_ptr<WorkerSession>& weak : sessions_) {
    const std::shared_ptr<WorkerSession> session = weak.lock();
    if (session != nullptr && session->BreakOffIfStuck(now, options_.step_timeout)) {
      spdlog::warn("the worker at {} takes no messages and is cut off", session->peer());
    }
  }
  next_session_check_ = sessions_.empty() ? absl::InfiniteFuture() : now + kSessionCheck;
}

bool DecisionLoop::MayLeave(const Member& member) {
  if (!member.rank) return true;  // never served
  // Between epochs it is not known what it holds.
  if (group_.ByRank(*member.rank) != &member) return false;
  const core::Scheduler::WorkerAccount account = scheduler_.Account(*member.rank);
  return account.active + account.inflight == 0;
}

absl::Status DecisionLoop::DrainWorker(const std::string& worker_id) {
  Member* member = group_.FindById(worker_id);
  if (member == nullptr) return absl::NotFoundError(absl::StrCat("no worker ", worker_id));
  spdlog::info("draining worker {}", worker_id);
  OnLeave(*member);
  return absl::OkStatus();
}

// --- epochs ---

void DecisionLoop::OnEpochOpen(uint64_t epoch, const std::vector<Member*>& ranks) {
  std::vector<core::EpochMember> members;
  int64_t min_sequence = INT64_MAX, max_kv = 0;
  group_kv_ = 0;
  for (Member* member : ranks) {
    core::EpochMember& out = members.emplace_back();
    out.spec.slots = static_cast<int32_t>(member->hello.slots());
    out.spec.kv_tokens = static_cast<int64_t>(member->hello.kv_tokens());
    out.spec.accepts_new = !member->draining;
    out.spec.time_per_token = member->figures.time.time_per_token;
    out.spec.time_offset = member->figures.time.time_offset;
    out.resident = member->resident;
    Adopt(*member, out);
    min_sequence = std::min<int64_t>(
        min_sequence,
        static_cast<int64_t>(std::min<uint64_t>(member->hello.max_sequence_tokens(), uint64_t{1} << 40)));
    max_kv = std::max(max_kv, out.spec.kv_tokens);
    group_kv_ += out.spec.kv_tokens;
  }
  max_sequence_ = std::min(min_sequence, max_kv + 1);
  const std::vector<core::RequestId> displaced = scheduler_.OpenEpoch(std::move(members));
  for (const core::RequestId id : requests_.Ids()) {
    RequestRecord* record = requests_.Find(id);
    record->rank = scheduler_.WorkerOf(id);
    if (record->rank) record->last_rank = record->rank;
  }
  // In reverse, each to the front: the oldest ends up first.
  for (auto it = displaced.rbegin(); it != displaced.rend(); ++it) {
    if (RequestRecord* record = requests_.Find(*it); record != nullptr) Replay(*record);
  }
  if (!displaced.empty())
    spdlog::warn("{} requests lost their worker and are placed again", displaced.size());
  AuditResidents(ranks);
  RefuseUnfit();
  if (static_cast<int64_t>(ranks.size()) >= options_.workers) settled_ = true;
  AnswerEarlyResumes();
  recorder_.OpenEpoch(epoch, static_cast<int32_t>(ranks.size()));
  report_deadline_ = absl::InfiniteFuture();
  stall_deadline_ = now_ + 2 * options_.step_timeout;
  if (hooks_.on_serving) hooks_.on_serving(true);
}

void DecisionLoop::Replay(RequestRecord& record) {
  if (record.delivered >= record.request.max_new_tokens())  // only its end was lost
    return Complete(record, v1::FINISH_REASON_LENGTH);
  if (record.forgotten || ++record.replays > options_.max_replays) {
    totals_.set_replays_refused(totals_.replays_refused() + 1);
    return Fail(
        record,
        WithRetry(absl::UnavailableError(
                      record.forgotten
                          ? "the request's worker was lost, and it was too large to be kept for a replay"
                          : "the request's workers were lost, one after another"),
                  kUnavailableRetry));
  }
  totals_.set_replayed(totals_.replayed() + 1);
  core::RequestSpec spec = record.Spec();
  spec.priority += BegunBonus();
  scheduler_.Requeue(spec);
}

void DecisionLoop::OnEpochClosed() {
  scheduler_.CloseEpoch();
  report_deadline_ = stall_deadline_ = absl::InfiniteFuture();
  if (hooks_.on_serving) hooks_.on_serving(false);
}

void DecisionLoop::RefuseUnfit() {
  for (const core::RequestId id : requests_.Ids()) {
    RequestRecord* record = requests_.Find(id);
    if (record->rank || record->ended) continue;
    if (absl::Status status = CheckFits(*record); !status.ok()) Fail(*record, status);
  }
}

// --- decisions ---

void DecisionLoop::Decide(bool force) {
  for (;;) {
    const absl::Time before = MonotonicNow();
    if (decide_budget_ != nullptr) decide_budget_->Begin(before);
    const std::optional<core::Plan> plan = scheduler_.MakePlan(force);
    if (!plan) return;
    const absl::Duration took = MonotonicNow() - before;
    force = false;
    SendPlan(*plan);
    bool saturated = true;
    for (core::WorkerIndex g = 0; g < scheduler_.num_workers() && saturated; ++g) {
      const core::Scheduler::WorkerAccount account = scheduler_.Account(g);
      saturated = account.active + account.inflight >= account.spec.slots;
    }
    recorder_.OnDecision(static_cast<int64_t>(plan->placements.size()), scheduler_.waiting(), took, saturated,
                         plan->stopped_early);
    stall_deadline_ = now_ + 2 * options_.step_timeout;
  }
}

void DecisionLoop::SendPlan(const core::Plan& plan) {
  const std::vector<Member*>& ranks = group_.ranks();
  plan_messages_.resize(ranks.size());
  for (v1::RouterMessage& message : plan_messages_) {
    message.Clear();
    message.mutable_plan()->set_epoch(group_.epoch());
    message.mutable_plan()->set_apply_step(static_cast<uint64_t>(plan.apply_step));
  }
  for (const core::Drop& drop : plan.drops)
    plan_messages_[drop.worker].mutable_plan()->add_cancellations(drop.id);
  for (const core::Placement& placement : plan.placements) {
    RequestRecord* record = requests_.Find(placement.id);
    if (record == nullptr) {  // nobody waits for it: have it dropped again rather than hold its slot for ever
      scheduler_.Cancel(placement.id);
      continue;
    }
    record->rank = record->last_rank = placement.worker;
    record->placed_at = record->delivered;
    record->wait_steps = placement.wait_steps;
    if (!record->placed) {
      record->placed = now_;
      latencies_.OnPlaced(now_ - record->accepted);
    }
    *plan_messages_[placement.worker].mutable_plan()->add_assignments() = record->Assignment();
    if (spdlog::should_log(spdlog::level::debug)) {
      spdlog::debug("request {}: placed on rank {} for step {}, after {} steps in the pool",
                    record->LogName(), placement.worker, plan.apply_step, placement.wait_steps);
    }
  }
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    ranks[rank]->session->Send(std::move(plan_messages_[rank]));
  }
}

absl::Status DecisionLoop::SetPolicy(const v1::PolicySetting& setting) {
  const absl::StatusOr<core::PolicyOptions> options = ConvertPolicy(setting, policy_options_);
  if (!options.ok()) return options.status();
  absl::StatusOr<std::unique_ptr<core::Policy>> policy =
      core::MakeShadowedPolicy(setting.name(), *options, options_.shadow);
  if (!policy.ok()) return policy.status();
  policy_options_ = *options;
  scheduler_.SetPolicy(*std::move(policy), {setting.name(), *options});
  spdlog::info("policy is {} from now on", setting.name());
  return absl::OkStatus();
}

}  // namespace bfio::router
