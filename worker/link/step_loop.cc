#include "worker/link/step_loop.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/spdlog.h"
#include "common/base/status_macros.h"
#include "common/telemetry/log_fields.h"
#include "worker/scheduler/batch.h"

namespace bfio::worker {
namespace {

int64_t NowNs() {
  return absl::ToInt64Nanoseconds(MonotonicNow() - absl::UnixEpoch());
}

constexpr int64_t kAnyStep = std::numeric_limits<int64_t>::max();

// Lines about requests that fail: enough to see which, few enough not to hide others.
constexpr int kFailureLines = 5;
constexpr absl::Duration kFailurePeriod = absl::Seconds(30);

std::string Text(const absl::Status& status) {
  return status.ToString(absl::StatusToStringMode::kWithNoExtraData);
}

}  // namespace

StepLoop::StepLoop(StepLoopOptions options, std::unique_ptr<Engine> engine,
                   std::unique_ptr<BarrierEndpoint> endpoint, StepLink& link)
    : options_(std::move(options)),
      engine_(std::move(engine)),
      endpoint_(std::move(endpoint)),
      link_(link),
      held_(options_.resume_buffer_bytes),
      meter_(options_.energy),
      failures_(kFailureLines, kFailurePeriod),
      group_(options_.group) {}

absl::Status StepLoop::Run() {
  for (;;) {
    Begin(LoopTask::kWaiting);
    Inbox::Task task = inbox_.WaitForTask();
    absl::Status status;
    if (const auto* finish = std::get_if<Inbox::Finish>(&task)) {
      spdlog::info("{}: stopping: {}", options_.worker_id, finish->reason);
      return absl::OkStatus();
    } else if (const auto* greet = std::get_if<Inbox::Greet>(&task)) {
      status = Greet(greet->stream);
    } else {
      status = RunEpoch(std::get<Inbox::Enter>(task));
    }
    if (!status.ok()) return status;
  }
}

void StepLoop::Begin(LoopTask task, int64_t step, absl::Duration timeout) const {
  if (options_.recorder != nullptr) options_.recorder->OnTask(task, step, timeout);
}

void StepLoop::Record(absl::FunctionRef<void(RankTelemetry&)> change) const {
  if (options_.recorder != nullptr) options_.recorder->Record(change);
}

absl::Status StepLoop::Greet(uint64_t stream) {
  Hello hello;
  hello.worker_id = options_.worker_id;
  hello.limits = engine_->limits();
  hello.engine = std::string(engine_->name());
  hello.barrier = std::string(endpoint_->name());
  BFIO_ASSIGN_OR_RETURN(hello.communicator_offer, endpoint_->Offer());
  hello.active = engine_->resident();
  hello.version = options_.version;
  hello.router_instance = router_instance_;
  hello.service_s = options_.service_s;
  hello.group = group_;
  hello.worker_instance = options_.instance;
  hello.stream = stream;
  hello.model = options_.model;
  hello.logprobs = engine_->computes_logprobs();
  link_.Send(stream, std::move(hello));
  return absl::OkStatus();
}

absl::Status StepLoop::RunEpoch(const Inbox::Enter& enter) {
  for (const Handle handle : enter.epoch.cancellations) Drop(handle);
  Record([&](RankTelemetry& of) { of.free_kv_tokens = engine_->free_kv_tokens(); });
  held_.set_retain(enter.epoch.retain);
  if (!enter.epoch.group_name.empty()) group_ = enter.epoch.group_name;
  level_.reset();
  applied_plan_ = 0;
  parked_ = true;
  barrier_end_ns_.reset();
  BFIO_ASSIGN_OR_RETURN(auto barrier, FormGroup(enter));
  if (barrier == nullptr) return absl::OkStatus();
  // Aborts at once if the epoch is over already. Destroyed before the barrier.
  const std::stop_callback abort(enter.over, [&] { barrier->Abort(); });
  absl::Status status = RunSteps(enter, *barrier);
  Record([](RankTelemetry& of) { of.in_epoch = false; });
  return status;
}

absl::StatusOr<std::unique_ptr<Barrier>> StepLoop::FormGroup(const Inbox::Enter& enter) {
  const Epoch& epoch = enter.epoch;
  Begin(LoopTask::kForming, 0, epoch.form_timeout);
  auto barrier = endpoint_->Form(epoch.group, epoch.form_timeout, enter.over);
  EpochReady ready;
  ready.epoch = epoch.group.epoch;
  BFIO_ASSIGN_OR_RETURN(ready.communicator_offer, endpoint_->Offer());
  ready.active = engine_->resident();
  if (!barrier.ok()) {
    ready.error = Text(barrier.status());
    ready.missing_ranks = MissingRanks(barrier.status());
  } else if (epoch.announce) {
    for (Announcement& part : held_.Announce(epoch.group.epoch)) link_.Send(enter.stream, std::move(part));
  }
  link_.Send(enter.stream, std::move(ready));
  const ScopedLogFields fields{
      {"worker", options_.worker_id}, {"group", group_}, {"epoch", epoch.group.epoch}};
  Record([&](RankTelemetry& of) {
    of.in_epoch = barrier.ok();
    of.epochs_failed += barrier.ok() ? 0 : 1;
    // They have been reported to the router.
    if (barrier.ok()) of.undelivered_tokens = 0;
  });
  if (barrier.ok()) {
    spdlog::info("{}: epoch {}: rank {} of {}", options_.worker_id, epoch.group.epoch, epoch.group.rank,
                 epoch.group.world_size);
    return barrier;
  }
  spdlog::warn("{}: epoch {} did not form: {}", options_.worker_id, epoch.group.epoch,
               Text(barrier.status()));
  return std::unique_ptr<Barrier>();
}

absl::Status StepLoop::RunSteps(const Inbox::Enter& enter, Barrier& barrier) {
  for (int64_t step = 1;; ++step) {
    // A new router gets a hello at once; the group steps on until that router opens an epoch.
    if (const auto stream = inbox_.TakeGreeting()) {
      BFIO_RETURN_IF_ERROR(Greet(*stream));
    }
    BFIO_ASSIGN_OR_RETURN(const bool go_on, AwaitPlan(enter, step));
    if (!go_on) return absl::OkStatus();
    StepReport report;
    report.epoch = enter.epoch.group.epoch;
    report.step = step;
    ApplyDuePlans(enter, report);
    SetLevel(step);
    const absl::Status engine = RunLocal(enter, report);
    const absl::Status met = AwaitBarrier(enter, barrier, engine.ok(), report);
    barrier_end_ns_ = NowNs();
    if (!engine.ok()) return engine;
    if (met.ok()) {
      meter_.Take(report);
    } else {
      // The tokens in the report are valid nevertheless.
      report.barrier_error = Text(met);
      report.missing_ranks = MissingRanks(met);
    }
    std::string row;
    if (options_.step_log != nullptr && met.ok())
      row = options_.step_log->Row(report, enter.epoch.group, admitted_, *barrier_end_ns_);
    const uint64_t preempted = report.output.preempted.size(), failed = report.output.failed.size();
    const std::optional<StepCostEstimate> cost = report.cost;
    const std::optional<EnergyReading> energy = report.energy;
    link_.Send(enter.stream, std::move(report));
    // After the report, which others wait for.
    if (!row.empty()) options_.step_log->Append(row);
    Record([&](RankTelemetry& of) {
      of.steps += met.ok() ? 1 : 0;
      of.preempted_requests += preempted;
      of.failed_requests += failed;
      of.free_kv_tokens = engine_->free_kv_tokens();
      of.held_requests = static_cast<int64_t>(held_.size());
      if (cost) of.cost = *cost;
      if (energy) of.barrier_j = energy->sums.barrier_j;
    });
    if (!met.ok()) {
      const ScopedLogFields fields{{"worker", options_.worker_id},
                                   {"group", group_},
                                   {"epoch", enter.epoch.group.epoch},
                                   {"step", step}};
      // An epoch that was ended on purpose is not logged.
      spdlog::log(enter.over.stop_requested() ? spdlog::level::debug : spdlog::level::warn,
                  "{}: epoch {}, step {}: {}", options_.worker_id, enter.epoch.group.epoch, step, Text(met));
      return absl::OkStatus();
    }
  }
}

absl::StatusOr<bool> StepLoop::AwaitPlan(const Inbox::Enter& enter, int64_t step) {
  const bool lockstep = enter.epoch.plan_mode == PlanMode::kLockstep;
  if (!parked_ && !lockstep) return !enter.over.stop_requested();
  // An idle group may wait for hours.
  const absl::Duration timeout = parked_ ? absl::InfiniteDuration() : enter.epoch.step_timeout;
  if (parked_) barrier_end_ns_.reset();
  // A rank without a barrier continues with any new plan.
  const int64_t least = enter.epoch.uncoupled ? 1 : step;
  Begin(LoopTask::kWaiting);
  Inbox::PlanWait wait;
  while ((wait = inbox_.WaitForPlan(least, parked_, timeout)) == Inbox::PlanWait::kGreet) {
    if (const auto stream = inbox_.TakeGreeting()) {
      BFIO_RETURN_IF_ERROR(Greet(*stream));
    }
  }
  if (wait == Inbox::PlanWait::kReady) router_instance_ = enter.epoch.router_instance;
  if (wait != Inbox::PlanWait::kTimeout) return wait != Inbox::PlanWait::kOver;
  StepReport report;
  report.epoch = enter.epoch.group.epoch;
  report.step = step;
  report.applied_plan = applied_plan_;
  report.active_requests = engine_->active();
  report.free_slots = engine_->free_slots();
  report.free_kv_tokens = engine_->free_kv_tokens();
  report.barrier_error = absl::StrCat("no plan for step ", step, " within ", absl::FormatDuration(timeout));
  const ScopedLogFields fields{
      {"worker", options_.worker_id}, {"group", group_}, {"epoch", report.epoch}, {"step", step}};
  spdlog::warn("{}: epoch {}: {}", options_.worker_id, report.epoch, report.barrier_error);
  link_.Send(enter.stream, std::move(report));
  return false;
}

void StepLoop::ApplyDuePlans(const Inbox::Enter& enter, StepReport& report) {
  admitted_ = 0;
  inbox_.TakeDue(enter.epoch.uncoupled ? kAnyStep : report.step, due_);
  for (Plan& plan : due_) Apply(plan, report);
  report.applied_plan = applied_plan_;
}

void StepLoop::SetLevel(int64_t step) {
  // Without plans a level that is too low for a prompt would never rise.
  if (level_ && step - level_step_ >= kLevelSteps) level_.reset();
  const std::optional<BatchCost> cost = meter_.batch_cost();
  engine_->SetPrefillLevel(level_ && cost ? std::optional(PrefillLevel{*level_, *cost}) : std::nullopt);
}

void StepLoop::Apply(Plan& plan, StepReport& report) {
  applied_plan_ = plan.apply_step;
  level_ = plan.level_s;
  level_step_ = report.step;
  for (const Handle handle : plan.cancellations) Drop(handle);
  for (size_t i = 0; i < plan.assignments.size(); ++i) {
    SequenceRequest& request = plan.assignments[i];
    absl::Status admitted = Admit(request);
    if (admitted.ok()) {
      ++admitted_;
      if (!plan.notes.empty()) held_.Admit(std::move(request), std::move(plan.notes[i]));
    } else {
      report.rejected.push_back({request.handle, admitted.code(), std::string(admitted.message())});
    }
  }
}

absl::Status StepLoop::Admit(const SequenceRequest& request) {
  const auto kept =
      static_cast<int64_t>(options_.kv_watermark * static_cast<double>(engine_->limits().kv_tokens));
  const int64_t left = engine_->free_kv_tokens() - request.prompt_length;
  if (request.kv_on_demand && engine_->active() > 0 && left < kept) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the request would leave ", left, " free KV tokens; the watermark is ", kept));
  }
  return engine_->Admit(request);
}

void StepLoop::EndFailed(StepReport& report) {
  for (StepOutput::Failure& failure : report.output.failed) {
    held_.Drop(failure.handle);
    if (const auto more = failures_.Pass(failure.message)) {
      const ScopedLogFields fields{{"worker", options_.worker_id},
                                   {"epoch", report.epoch},
                                   {"step", report.step},
                                   {"handle", failure.handle}};
      spdlog::warn("{}: epoch {}, step {}: handle {} failed: {}{}", options_.worker_id, report.epoch,
                   report.step, failure.handle, failure.message, *more);
    }
    report.rejected.push_back({failure.handle, absl::StatusCode::kInternal, std::move(failure.message)});
  }
}

void StepLoop::Drop(Handle handle) {
  engine_->Cancel(handle);
  held_.Drop(handle);
}

absl::Status StepLoop::AwaitBarrier(const Inbox::Enter& enter, Barrier& barrier, bool engine_ok,
                                    StepReport& report) {
  Contribution mine = ContributionOf(report);
  if (!engine_ok) mine.stop_flags |= kStopEngineFailed;
  Begin(LoopTask::kAtBarrier, report.step, enter.epoch.step_timeout);
  const int64_t start_ns = NowNs();
  const auto view = barrier.AllReduce(report.step, mine, enter.epoch.step_timeout);
  report.barrier_wait_ns = NowNs() - start_ns;
  if (!view.ok()) return view.status();
  report.group = *view;
  parked_ = report.group_idle = view->sum_active == 0;
  if (view->stop_flags == 0) return absl::OkStatus();
  return absl::UnavailableError("the engine of a rank has failed; all ranks leave the epoch after this step");
}

absl::Status StepLoop::RunLocal(const Inbox::Enter& enter, StepReport& report) {
  Begin(LoopTask::kComputing, report.step, enter.epoch.step_timeout);
  const int64_t start_ns = NowNs();
  if (barrier_end_ns_.has_value()) report.gap_ns = start_ns - *barrier_end_ns_;
  const absl::Status status = engine_->Step(report.output);
  report.local_ns = NowNs() - start_ns;
  report.active_requests = engine_->active();
  report.free_slots = engine_->free_slots();
  report.free_kv_tokens = engine_->free_kv_tokens();
  report.prefill = engine_->prefill_state();
  held_.Take(report.output, MonotonicNow());
  // The router has the tokens of preempted requests and places them again, on any worker.
  for (const Handle handle : report.output.preempted) held_.Drop(handle);
  EndFailed(report);
  due_.clear();
  return status;
}

Contribution StepLoop::ContributionOf(const StepReport& report) const {
  return {report.output.load_tokens, report.local_ns, report.active_requests + inbox_.pending_assignments()};
}

void StepMeter::Take(StepReport& report) {
  fit_.Add(report.output.load_tokens, report.output.prefill_tokens,
           1e-9 * static_cast<double>(report.local_ns));
  batches_.Add(report.output.batch, 1e-9 * static_cast<double>(report.local_ns));
  if (fit_.blocks() != reported_blocks_) {
    reported_blocks_ = fit_.blocks();
    report.cost = fit_.estimate();
    report.batch_cost = batch_cost();
  }
  if (energy_ == nullptr) return;
  energy_->AddStep(report.local_ns, report.barrier_wait_ns + report.gap_ns.value_or(0));
  report.energy = energy_->TakeNews();
}

namespace {

constexpr int64_t kTokenBytes = sizeof(uint32_t);
// Memory of an entry beside ids and note: maps, vectors, sampling.
constexpr int64_t kEntryBytes = 512;
// Size of one Announcement, by the same estimate. An id takes up to 5 bytes on the wire, and the router
// accepts messages of up to 16 MiB.
constexpr int64_t kMessageBytes = 1 << 20;

int64_t BytesOf(const Logprobs& logprobs) {
  return static_cast<int64_t>(logprobs.tokens.size() * sizeof(float) +
                              logprobs.top.size() * sizeof(TopToken));
}

int64_t BytesOf(const HeldRequest& held, int64_t tokens) {
  const SequenceRequest& request = held.request;
  int64_t of_token = kTokenBytes;
  if (request.sampling.logprobs)
    of_token += static_cast<int64_t>(sizeof(float)) + *request.sampling.logprobs * int64_t{sizeof(TopToken)};
  const auto ids = static_cast<int64_t>(request.prompt.size() + request.stop_token_ids.size() +
                                        held.note.earlier_tokens.size());
  return kEntryBytes + kTokenBytes * ids + of_token * tokens + BytesOf(held.note.earlier_logprobs) +
         static_cast<int64_t>(held.note.origin.size());
}

}  // namespace

void HeldRequests::Admit(SequenceRequest request, RequestNote note) {
  const Handle handle = request.handle;
  // The router did not receive the request's end, and has it generated again.
  if (const auto it = held_.find(handle); it != held_.end() && it->second.held.ended.has_value())
    Drop(handle);
  if (note.origin.empty() || held_.contains(handle)) return;
  const int64_t tokens = request.max_new_tokens;
  Entry entry;
  entry.held.request = std::move(request);
  entry.held.note = std::move(note);
  entry.bytes = BytesOf(entry.held, tokens);
  while (bytes_ + entry.bytes > max_bytes_ && !ended_.empty()) DropOldestEnded();
  if (bytes_ + entry.bytes > max_bytes_) return;
  bytes_ += entry.bytes;
  held_.emplace(handle, std::move(entry));
}

void HeldRequests::Take(const StepOutput& output, absl::Time now) {
  if (held_.empty()) return;
  for (const StepOutput::Token& token : output.tokens) {
    const auto it = held_.find(token.handle);
    if (it != held_.end()) it->second.held.tokens.push_back(token.id);
  }
  for (const StepOutput::Alternatives& one : output.alternatives) {
    const auto it = held_.find(output.tokens[one.token].handle);
    if (it == held_.end()) continue;
    Logprobs& logprobs = it->second.held.logprobs;
    logprobs.tokens.push_back(output.log_probabilities[one.token]);
    logprobs.top.insert(logprobs.top.end(), one.top.begin(), one.top.end());
  }
  for (const StepOutput::Finish& finish : output.finished) {
    const auto it = held_.find(finish.handle);
    if (it != held_.end()) End(finish.handle, it->second, finish.cause, now);
  }
  while (!ended_.empty() && now - held_.at(ended_.front()).ended >= retain_) DropOldestEnded();
}

void HeldRequests::End(Handle handle, Entry& entry, FinishCause cause, absl::Time now) {
  entry.held.ended = cause;
  entry.ended = now;
  bytes_ -= entry.bytes;
  entry.bytes = BytesOf(entry.held, static_cast<int64_t>(entry.held.tokens.size()));
  bytes_ += entry.bytes;
  ended_.push_back(handle);
}

void HeldRequests::Drop(Handle handle) {
  const auto it = held_.find(handle);
  if (it == held_.end()) return;
  // A handle may be used again: an earlier end under it must not be found then.
  if (it->second.held.ended.has_value()) std::erase(ended_, handle);
  bytes_ -= it->second.bytes;
  held_.erase(it);
}

void HeldRequests::DropOldestEnded() {
  const auto it = held_.find(ended_.front());
  ended_.pop_front();
  bytes_ -= it->second.bytes;
  held_.erase(it);
}

std::vector<Announcement> HeldRequests::Announce(uint64_t epoch) const {
  std::vector<Handle> handles;
  handles.reserve(held_.size());
  for (const auto& [handle, entry] : held_) handles.push_back(handle);
  std::sort(handles.begin(), handles.end());
  std::vector<Announcement> messages;
  int64_t bytes = kMessageBytes;
  for (const Handle handle : handles) {
    const HeldRequest& held = held_.at(handle).held;
    const int64_t size = BytesOf(held, static_cast<int64_t>(held.tokens.size()));
    if (bytes + size > kMessageBytes) {
      messages.push_back({epoch, {}});
      bytes = 0;
    }
    bytes += size;
    messages.back().requests.push_back(held);
  }
  return messages;
}

}  // namespace bfio::worker
