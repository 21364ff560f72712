#include "tools/loadgen/runner.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/net/status.h"

namespace bfio::loadgen {
namespace {

// How often the loop checks for signals and updates the progress line when no other event wakes it.
constexpr absl::Duration kTick = absl::Milliseconds(100);
// Open loop: requests due at the very end of the duration may still be sent within this time.
constexpr absl::Duration kSendGrace = absl::Seconds(1);
// How often one request is sent again after RESOURCE_EXHAUSTED with a retry delay.
constexpr uint32_t kMaxRetries = 5;
// Pause of a closed loop after the router could not be reached.
constexpr absl::Duration kUnavailablePause = absl::Milliseconds(100);
// Bounds of the pause before a broken stream is resumed.
constexpr absl::Duration kFirstResumePause = absl::Milliseconds(50);
constexpr absl::Duration kLastResumePause = absl::Seconds(1);

}  // namespace

Runner::Runner(const Options& options, const Login& login, Schedule& schedule,
               const std::shared_ptr<grpc::Channel>& channel, std::string run_id,
               std::function<bool()> stop_requested, Progress& progress)
    : options_(options),
      metadata_(client::BearerToken(login.token)),
      schedule_(schedule),
      stub_(v1::Inference::NewStub(channel)),
      run_id_(std::move(run_id)),
      resume_token_(options.resume ? absl::StrCat("secret-", run_id_) : ""),
      stop_requested_(std::move(stop_requested)),
      progress_(progress) {
  MutexLock lock(&mutex_);
  results_.goodput = Goodput(options.goodput);
}

Results Runner::Run() {
  start_ = MonotonicNow();
  if (options_.duration_s > 0) {
    send_end_ = start_ + absl::Seconds(options_.duration_s);
    if (!options_.closed_loop()) send_end_ += kSendGrace;
  }
  next_ = schedule_.Next();
  for (;;) {
    const absl::Time now = MonotonicNow();
    if (!interrupted_ && stop_requested_()) {
      next_.reset();
      interrupted_ = sent_all_ = true;
      CancelAll();
    }
    if (!sent_all_ && now >= send_end_) DropUnsent();
    progress_.Update(now, [&] { return View(now); });
    Step step;
    {
      MutexLock lock(&mutex_);
      if (now >= next_sample_) {
        next_sample_ = now + kTick;
        results_.timeline.OnUnderWay(absl::ToDoubleSeconds(now - start_), open_.size());
      }
      step = NextStep(now);
      if (step.kind == Step::kWait) {
        changed_ = false;
        mutex_.AwaitWithTimeout(absl::Condition(&changed_), std::min(step.until - now, kTick));
      }
    }
    if (step.kind == Step::kFinished) break;
    if (step.kind == Step::kSendNew) SendNew(now);
    if (step.kind == Step::kSendAgain) StartAttempt(step.retry_index);
  }
  MutexLock lock(&mutex_);
  results_.duration_s = results_.requests_sent > 0 ? absl::ToDoubleSeconds(last_end_ - start_) : 0;
  return std::move(results_);
}

Runner::Step Runner::NextStep(absl::Time now) {
  if (!next_.has_value() && open_.empty()) return {.kind = Step::kFinished};
  Step wait;
  if (!retries_.empty()) {
    const auto [when, index] = *retries_.begin();
    if (when <= now) {
      retries_.erase(retries_.begin());
      return {.kind = Step::kSendAgain, .retry_index = index};
    }
    wait.until = when;
  }
  if (next_.has_value() && MaySend(now, wait.until)) return {.kind = Step::kSendNew};
  return wait;
}

bool Runner::MaySend(absl::Time now, absl::Time& until) const {
  const size_t limit = options_.closed_loop() ? options_.concurrency : kMaxInFlight;
  if (open_.size() >= limit) return false;
  const absl::Time due =
      options_.closed_loop() ? std::max(start_, hold_until_) : start_ + absl::Seconds(next_->due_s);
  if (due <= now) return true;
  until = std::min(until, due);
  return false;
}

void Runner::SendNew(absl::Time now) {
  const PlannedRequest planned = *next_;
  next_ = schedule_.Next();
  const bool closed = options_.closed_loop();
  const absl::Time due = closed ? now : start_ + absl::Seconds(planned.due_s);
  {
    MutexLock lock(&mutex_);
    results_.Sent(absl::ToDoubleSeconds(due - start_),
                  closed ? std::nullopt : std::optional<double>(absl::ToDoubleSeconds(now - due)));
    open_.try_emplace(planned.index, Open{.planned = planned,
                                          .due = due,
                                          .give_up = now + options_.timeout,
                                          .resumes = Backoff(kFirstResumePause, kLastResumePause,
                                                             options_.seed + planned.index)});
  }
  StartAttempt(planned.index);
}

void Runner::StartAttempt(uint64_t index) {
  Attempt attempt;
  {
    MutexLock lock(&mutex_);
    const auto found = open_.find(index);
    if (found == open_.end()) return;
    const Open& open = found->second;
    attempt.planned = open.planned;
    attempt.received = open.received;
    attempt.resume = open.resume;
    attempt.deadline = absl::Now() + (open.give_up - MonotonicNow());
  }
  attempt.request_id = absl::StrCat(run_id_, "-", index);
  attempt.ttft_objective = options_.ttft_objective;
  attempt.metadata = &metadata_;
  attempt.resume_token = resume_token_;
  attempt.live_tokens = &live_tokens_;
  attempt.done = [this, index](AttemptResult result) { OnAttemptDone(index, std::move(result)); };
  std::shared_ptr<client::StreamCall> call = StartStream(*stub_, std::move(attempt));
  MutexLock lock(&mutex_);
  // The request may have ended meanwhile. If a retry is already waiting, it now holds an ended call;
  // cancelling that has no effect.
  const auto found = open_.find(index);
  if (found != open_.end()) found->second.call = std::move(call);
}

void Runner::DropUnsent() {
  sent_all_ = true;
  MutexLock lock(&mutex_);
  // In a closed loop no request was due: the next one waits for the end of another.
  if (!options_.closed_loop()) {
    for (; next_.has_value(); next_ = schedule_.Next()) ++results_.not_sent;
  }
  next_.reset();
}

void Runner::CancelAll() {
  std::vector<std::shared_ptr<client::StreamCall>> calls;
  {
    MutexLock lock(&mutex_);
    cancelling_ = true;
    for (const auto& [when, index] : retries_) {
      open_.erase(index);
      results_.Add({.code = "CANCELLED", .interrupted = true});
    }
    last_end_ = MonotonicNow();
    retries_.clear();
    for (const auto& [index, open] : open_) {
      if (open.call != nullptr) calls.push_back(open.call);
    }
  }
  // Without the lock: a cancellation may run reactions of other streams on this thread.
  for (const auto& call : calls) call->Cancel();
}

void Runner::OnAttemptDone(uint64_t index, AttemptResult result) {
  MutexLock lock(&mutex_);
  changed_ = true;
  Open& open = open_.at(index);
  if (ScheduleResume(open, index, result) || ScheduleRetry(open, index, result)) return;
  if (result.status.error_code() == grpc::StatusCode::UNAVAILABLE)
    hold_until_ = result.end + kUnavailablePause;
  if (cancelling_ && result.breach_at_end) result.breach.clear();
  EndedRequest ended = {.code = StatusCodeName(result.status.error_code()),
                        .message = result.status.error_message(),
                        .interrupted = cancelling_ && !result.status.ok(),
                        .breach = std::move(result.breach),
                        .prompt_tokens = open.planned.prompt_tokens,
                        .output_tokens = open.received->tokens,
                        .token_mismatches = open.received->mismatches,
                        .e2e_s = absl::ToDoubleSeconds(result.end - open.due),
                        .gaps = std::move(open.received->gaps),
                        .due_s = absl::ToDoubleSeconds(open.due - start_)};
  if (open.received->first_token.has_value()) {
    ended.ttft_s = absl::ToDoubleSeconds(*open.received->first_token - open.due);
  }
  results_.Add(ended);
  last_end_ = result.end;
  open_.erase(index);
}

bool Runner::ScheduleResume(Open& open, uint64_t index, const AttemptResult& result) {
  if (cancelling_ || resume_token_.empty() || !result.breach.empty() ||
      result.status.error_code() != grpc::StatusCode::UNAVAILABLE) {
    return false;
  }
  const absl::Time when = result.end + open.resumes.Next();
  if (when >= open.give_up) return false;
  if (!open.resume) ++results_.resumed;
  open.resume = true;
  retries_.emplace(when, index);
  return true;
}

bool Runner::ScheduleRetry(Open& open, uint64_t index, const AttemptResult& result) {
  if (cancelling_ || result.status.error_code() != grpc::StatusCode::RESOURCE_EXHAUSTED ||
      open.received->tokens > 0) {
    return false;
  }
  if (open.retries >= kMaxRetries) return false;
  const std::optional<absl::Duration> delay = GetRetryDelay(result.status);
  if (!delay.has_value() || result.end + *delay >= open.give_up) return false;
  ++open.retries;
  ++results_.retries;
  retries_.emplace(result.end + *delay, index);
  return true;
}

ProgressView Runner::View(absl::Time now) {
  MutexLock lock(&mutex_);
  return {.elapsed_s = absl::ToDoubleSeconds(now - start_),
          .total = schedule_.total(),
          .completed = results_.completed,
          .failed = results_.failed_total(),
          .under_way = open_.size(),
          .tokens = live_tokens_.load(std::memory_order_relaxed)};
}

}  // namespace bfio::loadgen
