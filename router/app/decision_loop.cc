#include "router/app/decision_loop.h"

#include <pthread.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "common/base/spdlog.h"
#include "common/base/router_instance.h"
#include "common/net/status.h"
#include "router/core/shadow/shadowed_policy.h"
#include "router/frontend/retry.h"
#include "router/worker_link/held_request.h"

namespace bfio::router {
namespace {

core::SchedulerOptions CoreOptions(const RouterOptions& options) {
  core::SchedulerOptions core;
  core.plan_mode = options.plan_mode;
  core.coupled = options.coupled;
  core.max_waiting = options.max_waiting;
  core.window = options.window > 0 ? options.window : options.max_waiting;
  core.admission = options.admission;
  core.wait = options.wait;
  core.hold_after_steps = options.admission_hold;
  core.prefill = options.prefill;
  return core;
}

std::unique_ptr<record::Recorder> MakeRecorder(std::unique_ptr<record::LogSink> log,
                                               const RouterOptions& options, core::RequestId id_base) {
  if (log == nullptr) return nullptr;
  return std::make_unique<record::Recorder>(
      std::move(log), record::SessionInfo{options.version, id_base}, CoreOptions(options),
      record::PolicySetting{options.policy, options.policy_options}, options.lookahead);
}

absl::Status ShuttingDown() {
  return WithRetry(absl::UnavailableError("the router is shutting down"), kFailedRetry);
}

// What another decides by now. As after a crash, the next router takes over what the workers hold.
[[noreturn]] void EndWithoutLease() {
  spdlog::critical("the election's lease is lost: another router may lead now; this one ends");
  spdlog::default_logger()->flush();
  std::_Exit(EXIT_FAILURE);
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
      // Where no earlier router's are: workers may still hold requests of that one. Adopt sees to it that
      // they do not meet when this machine's clock was set back.
      next_id_(static_cast<core::RequestId>(absl::ToUnixMillis(absl::Now())) << 20),
      instance_(options.term > 0 ? kElected + options.term
                                 : static_cast<uint64_t>(absl::ToUnixNanos(absl::Now()))),
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
  TenantLimiter::Ticket ticket;
  if (!request.has_resume_from_index()) {
    // A flood is refused here, where it costs the decision thread nothing.
    if (waiting_hint_.load(std::memory_order_relaxed) >= options_.max_waiting) {
      refused_full_.fetch_add(1, std::memory_order_relaxed);
      return WithRetry(absl::ResourceExhaustedError(
                           absl::StrCat("the waiting pool is full (", options_.max_waiting, " requests)")),
                       kFullRetry);
    }
    auto entered = EnterTenant(request);
    if (!entered.ok()) return entered.status();
    ticket = *std::move(entered);
  }
  return PostWithin(ArrivalsLimit(), [this, id, request = std::move(request), stream = std::move(stream),
                                      ticket = std::move(ticket)]() mutable {
    OnArrival(id, std::move(request), std::move(stream), std::move(ticket));
  });
}

absl::Status DecisionLoop::PostCall(Caller caller, absl::AnyInvocable<void(DecisionLoop&) &&> event) {
  const int64_t most = ArrivalsLimit();
  // No flood of calls keeps requests out, and one of requests hardly an Abort.
  const int64_t limit = caller == Caller::kClient ? std::max(most - 1024, most / 2) : most + 1024;
  return PostWithin(limit, [this, event = std::move(event)]() mutable { std::move(event)(*this); });
}

absl::Status DecisionLoop::PostWithin(int64_t limit, EventQueue::Event event) {
  if (events_.PostBounded(std::move(event), static_cast<size_t>(limit))) return absl::OkStatus();
  if (stop_requested_.load()) return ShuttingDown();
  return WithRetry(absl::ResourceExhaustedError("the router is overloaded"), kFullRetry);
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
  // For who looks at the process with top -H or perf.
  pthread_setname_np(pthread_self(), "bfio-decide");
  std::vector<EventQueue::Event> batch;
  for (bool done = false; !done;) {
    events_.WaitAndTake(std::min(UntilNextDeadline(MonotonicNow()), kLongestTurn), batch);
    now_ = MonotonicNow();
    last_turn_.store(now_, std::memory_order_relaxed);
    if (options_.lease != nullptr && !options_.lease->Look()) EndWithoutLease();
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

absl::Duration DecisionLoop::SinceTurn() const {
  return MonotonicNow() - last_turn_.load(std::memory_order_relaxed);
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
  if (!early_resumes_.empty()) next = std::min(next, SettleEnd());
  next = std::min(next, next_session_check_);
  if (draining_) next = std::min(next, drain_deadline_);
  if (options_.lease != nullptr) next = std::min(next, now + options_.lease->Left());
  return std::max(absl::ZeroDuration(), std::min(next - now, UntilParentDeadline(now)));
}

void DecisionLoop::RunTimers(absl::Time now) {
  if (now >= group_.next_deadline()) group_.OnTimer(now);
  ExpireResumes(now);
  ExpireParents(now);
  if (now >= next_session_check_) CheckSessions(now);
  if (now >= report_deadline_) {
    report_deadline_ = absl::InfiniteFuture();
    if (group_.serving() && scheduler_.ReportsMissing()) Decide(true);
  }
  if (now >= stall_deadline_) {
    stall_deadline_ = absl::InfiniteFuture();
    // Ranks that are not coupled are looked at one by one (Group::OnPlanned).
    if (options_.coupled && group_.serving() && !scheduler_.Parked()) {
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
  if (record == nullptr && requests_.FindByName(name) == nullptr) {
    // A worker has brought a request of that number since it was given out.
    return refuse(
        WithRetry(absl::UnavailableError("the router has just taken over from another"), kFailedRetry));
  }
  if (record == nullptr) {
    totals_.set_refused_invalid(totals_.refused_invalid() + 1);
    return refuse(absl::AlreadyExistsError(absl::StrCat("a live request has the request_id ", name)));
  }
  record->ticket = std::move(ticket);
  if (restarts) TakeReceived(*record);
  absl::Status status = CheckFits(*record);
  if (absl::Status room = CheckRoom(*record); status.ok() && !room.ok()) {
    totals_.set_refused_memory(totals_.refused_memory() + 1);
    status = WithRetry(std::move(room), kFullRetry);
  } else if (!status.ok()) {
    totals_.set_refused_invalid(totals_.refused_invalid() + 1);
  } else if (status = LookAtParent(*record); !status.ok()) {
    totals_.set_refused_parent_deadline(totals_.refused_parent_deadline() + 1);
  } else {
    core::RequestSpec spec = record->Spec(scheduler_.NextStep());
    if (record->delivered > 0 && now_ - started_ <= options_.resume_timeout) spec.priority += BegunBonus();
    status = scheduler_.Enqueue(spec);
    // Only now: a call that is refused makes no parent, and puts none out of the book.
    if (status.ok()) JoinParent(*record);
    if (absl::IsResourceExhausted(status)) {
      totals_.set_refused_pool_full(totals_.refused_pool_full() + 1);
      status = WithRetry(std::move(status), kFullRetry);
    }
  }
  if (!status.ok()) {
    requests_.Erase(id);
    return refuse(status);
  }
  totals_.set_accepted(totals_.accepted() + 1);
  // What an earlier router was asked for is not asked for anew.
  if (!restarts) arrivals_.Add(now_);
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

bool DecisionLoop::Abort(const v1::AbortRequest& abort, const std::optional<std::string>& tenant) {
  RequestRecord* record = requests_.FindByName(abort.request_id());
  if (record == nullptr || !MayAbort(record->request, abort, tenant)) return false;
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

// --- decisions ---

bool DecisionLoop::Saturated() const {
  for (core::WorkerIndex g = 0; g < scheduler_.num_workers(); ++g) {
    const core::Scheduler::WorkerAccount account = scheduler_.Account(g);
    if (account.active + account.inflight < account.spec.slots) return false;
  }
  return true;
}

void DecisionLoop::Decide(bool force) {
  for (;;) {
    const absl::Time before = MonotonicNow();
    if (decide_budget_ != nullptr) decide_budget_->Begin(before);
    const std::optional<core::Plan> plan = scheduler_.MakePlan(force);
    if (!plan) return;
    const absl::Duration took = MonotonicNow() - before;
    force = false;
    SendPlan(*plan);
    recorder_.OnDecision(static_cast<int64_t>(plan->placements.size()), scheduler_.waiting(), took,
                         options_.coupled && Saturated(), plan->stopped_early, plan->gap);
    stall_deadline_ = now_ + 2 * options_.step_timeout;
  }
}

void DecisionLoop::SendPlan(const core::Plan& plan) {
  const std::vector<Member*>& ranks = group_.ranks();
  plan_messages_.resize(ranks.size());
  const bool coupled = plan.apply_steps.empty();
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    v1::RouterMessage& message = plan_messages_[rank];
    message.Clear();
    message.mutable_plan()->set_epoch(group_.epoch());
    message.mutable_plan()->set_apply_step(
        static_cast<uint64_t>(coupled ? plan.apply_step : plan.apply_steps[rank]));
    if (plan.prefill_piece)
      message.mutable_plan()->set_prefill_piece(static_cast<uint32_t>(*plan.prefill_piece));
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
    v1::Assignment& assignment = *plan_messages_[placement.worker].mutable_plan()->add_assignments();
    assignment = record->Assignment(now_);
    assignment.set_kv_on_demand(options_.admission.kind != core::KvGateOptions::Kind::kNone &&
                                !core::RequestSpec::ReservesAfter(record->refusals));
    if (spdlog::should_log(spdlog::level::debug)) {
      spdlog::debug("request {}: placed on rank {} for step {}, after {} steps in the pool",
                    record->LogName(), placement.worker,
                    coupled ? plan.apply_step : plan.apply_steps[placement.worker], placement.wait_steps);
    }
  }
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    if (!coupled && plan.apply_steps[rank] == 0) continue;
    for (const core::RequestId id : strangers_[rank])
      plan_messages_[rank].mutable_plan()->add_cancellations(static_cast<uint64_t>(id));
    strangers_[rank].clear();
    ranks[rank]->session->Send(std::move(plan_messages_[rank]));
    group_.OnPlanned(*ranks[rank], now_);
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
