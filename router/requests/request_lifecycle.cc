#include "router/requests/request_lifecycle.h"

#include "absl/strings/str_cat.h"
#include "common/base/spdlog.h"
#include "common/telemetry/log_fields.h"
#include "router/requests/not_tried.h"
#include "router/requests/resume_rights.h"
#include "router/requests/retry.h"

namespace bfio::router {
namespace {

// Number of refusals by workers after which a request ends. The accounts are exact, so even one refusal
// indicates a fault.
constexpr int kMaxRefusals = 16;

// Logs a line about a request, rate-limited per kind, because clients can cause any number of them.
void LogEvent(LineLimiter& lines, spdlog::level::level_enum level, absl::string_view kind,
              const RequestRecord& record, absl::Time now, absl::string_view what) {
  if (!spdlog::should_log(level)) return;
  const std::optional<std::string> more = lines.Pass(kind, now);
  if (!more.has_value()) return;
  const ScopedLogFields fields(record.Fields());
  spdlog::log(level, "request {}: {}{}", record.LogName(), std::string(what), *more);
}

// Log-probabilities of the first `tokens` tokens, with the requested number of alternatives each. Empty: not
// requested, or not available.
LogprobsView LogprobsOf(const Sampling& sampling, const LogprobsView& from, size_t tokens) {
  if (!sampling.logprobs || from.tokens.size() < tokens || from.width() != *sampling.logprobs) return {};
  return from.subspan(0, tokens);
}

// Logs a debug line about a request, without a rate limit.
void Trace(const RequestRecord& record, absl::string_view what) {
  if (!spdlog::should_log(spdlog::level::debug)) return;
  const ScopedLogFields fields(record.Fields());
  spdlog::debug("request {}: {}", record.LogName(), std::string(what));
}

absl::Status RetryLater(absl::string_view why) {
  return WithRetry(absl::UnavailableError(why), kFailedRetry);
}

}  // namespace

RequestLifecycle::RequestLifecycle(const RequestOptions& options, core::Cluster* cluster, Tenants* tenants,
                                   OverloadControl* overload, absl::Time now)
    : options_(options),
      cluster_(cluster),
      tenants_(tenants),
      overload_(overload),
      resumes_(options.resume),
      queue_(options.max_queue_time),
      now_(now),
      started_(now) {}

// --- clients ---

void RequestLifecycle::OnCancel(uint64_t sink_id, bool timed_out, absl::Time now) {
  now_ = now;
  RequestRecord* record = table_.FindBySink(sink_id);
  if (record == nullptr) {  // ended meanwhile, or not started yet
    const std::optional<EarlyResume> early = resumes_.TakeEarlyBySink(sink_id);
    if (early) EndSink(early->sink, absl::CancelledError(), std::nullopt);
    return;
  }
  if (record->request.resumable && !timed_out) return Detach(*record, absl::CancelledError());
  Cancel(record->core_id);
  ++totals_.cancelled;
  End(*record, absl::CancelledError(), std::nullopt);
}

bool RequestLifecycle::Abort(const std::string& tenant, const std::string& request_id,
                             absl::string_view resume_token, absl::Time now) {
  now_ = now;
  bool found = false;
  for (const core::RequestId id : table_.IdsOf(tenant, request_id)) {
    RequestRecord& record = *table_.Find(id);
    if (!MayAbort(record.request, resume_token)) continue;
    if (record.ended) {  // nothing is left to abort; its id becomes free
      End(record, absl::OkStatus(), std::nullopt);
      continue;
    }
    found = true;
    Cancel(record.core_id);
    ++totals_.aborted;
    End(record, absl::OkStatus(), record.MakeFinish(FinishReason::kAbort, now_));
  }
  return found;
}

// --- groups ---

void RequestLifecycle::OnTokens(core::RequestId id, absl::Span<const uint32_t> tokens,
                                const LogprobsView& logprobs, absl::Time now,
                                absl::Span<const PassedPtr> messages) {
  now_ = now;
  RequestRecord* const found = InCore(id);
  if (found == nullptr) return;  // cancelled meanwhile
  RequestRecord& record = *found;
  const Passing& passed = record.request.passed;
  // A message without tokens does not show that the worker has accepted the request, and tokens are no
  // progress of a request that may start again.
  if (!tokens.empty() && !passed.starts_again) {
    record.refusals = 0;
    record.hand_offs = 0;
    record.refused_since.reset();
  }
  tokens = tokens.subspan(0, record.request.max_new_tokens - record.delivered);
  if (tokens.empty() && messages.empty()) return;
  const LogprobsView asked = LogprobsOf(record.request.sampling, logprobs, tokens.size());
  if (record.request.sampling.logprobs && asked.empty()) {
    return Fail(record, absl::InternalError("the worker's report has no log-probabilities of its tokens"));
  }
  if (tokens.empty()) {
    // Latencies are not measured.
  } else if (!record.first_token) {
    record.first_token = now_;
    // A client that has sent a started request again has had its first token.
    if (record.had == 0 && record.request.resume_from.value_or(0) == 0) {
      const absl::Duration took = now_ - record.accepted;
      latencies_.OnFirstToken(took);
      if (const auto objective = record.request.ttft_objective)
        ++(took <= *objective ? totals_.ttft_objectives_met : totals_.ttft_objectives_missed);
    }
    if (tokens.size() > 1) latencies_.OnTokens(tokens.size() - 1, absl::ZeroDuration());
  } else {
    latencies_.OnTokens(tokens.size(), now_ - record.last_token);
  }
  record.last_token = now_;
  if (record.model == 0 && !passed.starts_again) {
    record.model = record.placed_model;
    SetModelOf(record);
  }
  tenants_->totals().OnTokens(record.tenant, record.request.tenant, tokens.size());
  overload_->OnFirstToken(record);
  const uint32_t index = record.delivered;
  record.delivered += static_cast<uint32_t>(tokens.size());
  record.suspicion.OnTokens(record.delivered - record.placed_at);
  // No other engine could continue this output.
  if (passed.on && !passed.starts_again && !passed.continues && !tokens.empty())
    record.request.passed.message = nullptr;
  const int64_t bytes = record.Keep(tokens, asked);
  if (record.sink != nullptr && (passed.on ? !messages.empty() : record.delivered > record.send_from)) {
    const uint32_t skip = record.send_from > index ? record.send_from - index : 0;
    switch (passed.on ? record.sink->Pass(messages, now_)
                      : record.sink->Deliver(index + skip, tokens.subspan(skip), asked.subspan(skip), now_)) {
      case TokenSink::Delivery::kTaken: break;
      case TokenSink::Delivery::kFlush: FlushLater(record.sink); break;
      case TokenSink::Delivery::kTooSlow: CutOff(record); break;
      case TokenSink::Delivery::kEnough:
        Cancel(record.core_id);
        Complete(record, FinishReason::kStop);
        break;
    }
  }
  // The record may have been erased by now.
  if (bytes > 0) Keep(id, bytes);
}

void RequestLifecycle::OnFinished(core::RequestId id, FinishReason reason, absl::Time now,
                                  std::optional<uint32_t> generated) {
  now_ = now;
  if (RequestRecord* const of = OfPrompt(id)) {
    aliases_.erase(id);
    of->prompt = 0;
  }
  RequestRecord* record = InCore(id);
  if (record == nullptr) return;
  if (generated) {
    record->delivered = *generated;
    tenants_->totals().OnTokens(record->tenant, record->request.tenant, *generated);
  }
  Complete(*record, reason);
}

void RequestLifecycle::OnRejected(core::RequestId id, const absl::Status& why, absl::Time now) {
  now_ = now;
  RequestRecord* const of_prompt = OfPrompt(id);
  RequestRecord* record = of_prompt != nullptr ? of_prompt : InCore(id);
  if (record == nullptr || (of_prompt != nullptr && !WithdrawFrom(*record))) return;
  const bool full = absl::IsResourceExhausted(why);
  const bool exact = !options_.kv_on_demand;
  const bool refused_for_long =
      record->hands_over && of_prompt == nullptr && record->refusals >= kMostHandOffs;
  if (refused_for_long) record->hand_offs = kMostHandOffs;
  if (full && (of_prompt != nullptr || record->hand_off_used || refused_for_long || IsWrongHandOff(why))) {
    ++totals_.hand_offs_failed;
    // Those of prompts with an id of their own were counted when they began.
    if (WasNotTried(why) && of_prompt != nullptr) --record->hand_offs;
    if (IsWrongHandOff(why)) ++record->hand_offs;
    const core::RequestId name = record->id;
    WaitAnew(*record);
    if ((record = table_.FindLive(name)) == nullptr) return;
  }
  if (full && WasNotTried(why)) {
    Trace(*record, why.message());
    // The deadline since the first refusal continues.
    if (record->refused_since && !exact) queue_.Add(*record, *record->refused_since);
    return;
  }
  if (!full) {
    const bool failed = absl::IsInternal(why);
    LogEvent(
        lines_, spdlog::level::warn, failed ? "failed" : "refused", *record, now_,
        absl::StrCat(failed ? "its worker could not continue it: " : "a worker refused it: ", why.message()));
  } else if (exact) {
    LogEvent(lines_, spdlog::level::warn, "no memory", *record, now_,
             absl::StrCat("a worker has no memory for it: ", why.message()));
  } else {
    // Expected where KV demand is estimated, or where the worker has its own admission.
    Trace(*record, absl::StrCat("a worker has no memory for it: ", why.message()));
  }
  if (full && (++record->refusals < kMaxRefusals || !exact)) {
    ++totals_.refused_by_workers;  // the scheduler has put it back into the pool
    // Where KV demand is estimated, a worker may be fuller than estimated for some time, and engines have
    // their own bounds. So the time of refusals is bounded, not their number.
    if (!record->refused_since) record->refused_since = now_;
    if (!exact) queue_.Add(*record, *record->refused_since);
    return;
  }
  Fail(*record, full ? RetryLater("workers refused the request too often for lack of KV memory") : why);
}

void RequestLifecycle::OnPreempted(core::RequestId id, absl::Time now, HandOffPtr hand_off) {
  now_ = now;
  RequestRecord* const of_prompt = OfPrompt(id);
  RequestRecord* record = of_prompt != nullptr ? of_prompt : InCore(id);
  if (record == nullptr || (of_prompt != nullptr && !WithdrawFrom(*record))) return;
  if (hand_off != nullptr) return TakeHandOff(*record, std::move(hand_off));
  ++totals_.preempted;
  if (record->delivered >= record->request.max_new_tokens) return Complete(*record, FinishReason::kLength);
  if (record->forgotten) {
    ++totals_.replays_refused;
    return Fail(
        *record,
        RetryLater("the request's worker ran out of KV memory, and the request was too large to be kept "
                   "(--request_memory_mb)"));
  }
  // Otherwise a request that no engine can serve would be placed again endlessly.
  if (record->request.passed.starts_again && ++record->refusals >= kMaxRefusals) {
    return Fail(*record, RetryLater("workers preempted the request too often"));
  }
  if (!EndIfStuck(*record)) Requeue(*record);
}

void RequestLifecycle::OnLost(core::RequestId id, absl::Time now) {
  now_ = now;
  RequestRecord* const of_prompt = OfPrompt(id);
  RequestRecord* record = of_prompt != nullptr ? of_prompt : InCore(id);
  if (record == nullptr || (of_prompt != nullptr && !WithdrawFrom(*record))) return;
  if (record->delivered >= record->request.max_new_tokens)  // only its finish was lost
    return Complete(*record, FinishReason::kLength);
  if (std::exchange(record->worker_died, false)) record->suspicion.OnDeath();
  if (record->suspicion.blamed()) {
    ++totals_.suspects_ended;
    ++totals_.replays_refused;
    const std::string why = absl::StrCat(record->suspicion.deaths(),
                                         " workers failed one after another while they ran this request");
    LogEvent(lines_, spdlog::level::warn, "suspect", *record, now_, absl::StrCat(why, ": ended"));
    return Fail(*record, absl::InternalError(why));
  }
  if (Stranded(*record)) {
    ++totals_.replays_refused;
    return Fail(*record, ModelGone(record->delivered));
  }
  if (record->forgotten) {
    ++totals_.replays_refused;
    return Fail(
        *record,
        RetryLater("the request's worker was lost, and the request was too large to be kept for a replay "
                   "(--request_memory_mb)"));
  }
  // Its client would wait for it; what a worker has announced may have none, and be any number.
  if (record->sink == nullptr && overload_->IsFull(cluster_->waiting())) {
    ++totals_.replays_refused;
    return Fail(*record, RetryLater("the request's worker was lost, and the waiting pool is full"));
  }
  if (EndIfStuck(*record)) return;
  if (record->suspicion.runs_alone())
    LogEvent(lines_, spdlog::level::info, "alone", *record, now_, "its workers failed: it runs alone next");
  ++totals_.replayed;
  Requeue(*record);
}

bool RequestLifecycle::EndIfStuck(RequestRecord& record) {
  const Passing& passed = record.request.passed;
  if (passed.starts_again && record.delivered > 0) {
    record.delivered = 0;
    if (record.sink != nullptr) record.sink->StartOver();
  }
  if (record.delivered == 0 || EngineContinues(record.request)) return false;
  // Workers can continue any request.
  const auto& groups = groups_.capacities;
  if (!passed.on && !std::all_of(groups.begin(), groups.end(), [](const auto& one) { return one.passes; }))
    return false;
  ++totals_.replays_refused;
  const absl::string_view why = passed.on ? "continue it: only greedy requests without penalties, grammar, "
                                            "stop strings, images and unknown fields can continue"
                                          : "continue an output that is sampled with a seed";
  Fail(record, RetryLater(absl::StrCat("the request's engine was lost after ", record.delivered,
                                       " tokens, and another engine cannot ", why)));
  return true;
}

void RequestLifecycle::OnWorkerDied(core::GroupIndex group, core::WorkerIndex worker) {
  const core::Cluster::Location there{group, worker};
  for (const core::RequestId id : table_.Ids()) {
    RequestRecord& record = *table_.Find(id);
    if (LocationOf(record) == there || cluster_->LocationOf(record.prompt) == there)
      record.worker_died = true;
  }
}

uint32_t RequestLifecycle::NumberOf(const std::string& model) const {
  for (const auto& [number, digest] : groups_.models) {
    if (digest == model && !model.empty()) return number;
  }
  return 0;
}

void RequestLifecycle::SetModelOf(const RequestRecord& record) const {
  const auto model = groups_.models.find(record.model);
  if (model != groups_.models.end() && record.sink != nullptr && record.request.resumable)
    record.sink->SetModel(model->second);
}

bool RequestLifecycle::Stranded(const RequestRecord& record) const {
  return record.model != 0 && !groups_.models.contains(record.model);
}

absl::Status RequestLifecycle::ModelGone(uint32_t tokens) {
  // Not UNAVAILABLE: a retry with the received tokens would continue them on another model.
  return absl::FailedPreconditionError(
      absl::StrCat("the model that began this request is no longer served, after ", tokens,
                   " tokens were delivered; another model cannot continue it: send the request again"));
}

void RequestLifecycle::SetGroups(GroupsView groups) {
  const bool other_models = groups.models != groups_.models;
  const bool other_ranks = ranks_named_ && groups.ranks != groups_.ranks;
  const bool hands_over = groups_.hands_over, computes_none = groups_.computes_none;
  // Requests wait for such servers also while none serves, until others do.
  const bool decodes = std::any_of(groups.ranks.begin(), groups.ranks.end(),
                                   [](const GroupRanks& of) { return of.ranks > 0 && !of.hands_over; });
  groups.computes_none |= computes_none && !decodes;
  groups.in_parallel |= groups_.in_parallel && !decodes;
  groups_ = std::move(groups);
  int64_t kv_tokens = 0;
  for (const GroupCapacity& group : groups_.capacities) kv_tokens += group.kv_tokens;
  overload_->SetCapacity(kv_tokens);
  if (other_ranks) {
    for (const core::RequestId id : table_.Ids()) {
      if (RequestRecord* record = table_.FindLive(id); record != nullptr) EndIfRankGone(*record);
    }
  }
  if ((hands_over && !groups_.hands_over && !groups_.computes_none) || groups_.computes_none != computes_none)
    ChooseHandOversAnew();
  if (!other_models) return;
  int64_t ended = 0;
  for (const core::RequestId id : table_.Ids()) {
    RequestRecord* record = table_.FindLive(id);
    if (record == nullptr || !Stranded(*record) || LocationOf(*record)) continue;
    ++ended;
    ++totals_.replays_refused;
    Fail(*record, ModelGone(record->delivered));
  }
  if (ended > 0) spdlog::warn("{} requests are ended: the model that began them is no longer served", ended);
}

bool RequestLifecycle::RankGone(const RequestRecord& record) const {
  const core::Scheduler* const group = cluster_->group(record.held_to->group);
  if (group == nullptr) return true;
  if (!group->open()) {
    // While the group forms again, its future ranks are not known. A group that was given up has none.
    const auto its = [&](const GroupRanks& one) { return one.group == record.held_to->group; };
    const auto ranks = std::find_if(groups_.ranks.begin(), groups_.ranks.end(), its);
    return ranks == groups_.ranks.end() || !ranks->returns;
  }
  return record.held_to->worker >= group->num_workers() ||
         (record.model != 0 && group->model() != 0 && record.model != group->model());
}

void RequestLifecycle::EndIfRankGone(RequestRecord& record) {
  if (!record.held_to || LocationOf(record) || !RankGone(record)) return;
  Fail(record, RetryLater(absl::StrCat("data_parallel_rank ", *record.request.rank,
                                       " has left, and the request may run only there")));
}

std::optional<Assignment> RequestLifecycle::OnPlaced(core::RequestId id, uint32_t rank, int64_t wait_steps,
                                                     absl::Time now, uint32_t model) {
  now_ = now;
  RequestRecord* const of_prompt = OfPrompt(id);
  RequestRecord* record = of_prompt != nullptr ? of_prompt : InCore(id);
  if (record == nullptr) {
    // No client waits for the request, so it must not keep its slot.
    Cancel(id);
    return std::nullopt;
  }
  record->placed_model = model;
  record->last_rank = rank;
  record->worker_died = false;
  record->placed_at = record->delivered;
  const PassedPtr& message = record->request.passed.message;
  if (message != nullptr && !message->brings_tokens() && !record->hands_over)
    overload_->OnFirstToken(*record);
  record->wait_steps = wait_steps;
  queue_.Remove(*record);
  if (!record->placed) {
    record->placed = now_;
    latencies_.OnPlaced(now_ - record->accepted);
  }
  if (spdlog::should_log(spdlog::level::debug))
    Trace(*record, absl::StrCat("placed on rank ", rank, ", after ", wait_steps, " steps in the pool"));
  // A hand-off is sent once.
  Assignment assignment = record->MakeAssignment(options_.kv_on_demand);
  record->hand_off_used = std::exchange(record->hand_off, nullptr) != nullptr;
  if (of_prompt != nullptr && !BeginPrompt(*record, assignment)) return std::nullopt;
  return assignment;
}

void RequestLifecycle::OnEpochOpened(absl::Time now) {
  now_ = now;
  for (const core::RequestId id : table_.Ids()) {
    RequestRecord* record = table_.FindLive(id);
    if (record == nullptr || LocationOf(*record)) continue;
    // UNAVAILABLE rather than INVALID_ARGUMENT, because the request fitted when it was accepted.
    if (const absl::Status status = CheckFits(*record); !status.ok()) {
      LogEvent(lines_, spdlog::level::warn, "too long", *record, now_,
               absl::StrCat("no worker can hold it any more: ", status.message()));
      Fail(*record, RetryLater(absl::StrCat("no connected worker can hold the request: ", status.message())));
    }
  }
  if (groups_.complete) settled_ = true;
  AnswerEarlyResumes();
}

std::optional<uint32_t> RequestLifecycle::ReceivedSincePlaced(core::RequestId id) const {
  if (OfPrompt(id) != nullptr) return 0;
  const RequestRecord* record = InCore(id);
  if (record == nullptr) return std::nullopt;
  return record->delivered - record->placed_at;
}

void RequestLifecycle::CountTokens(uint32_t generated, uint32_t received) {
  if (generated > received) totals_.tokens_lost += generated - received;
  if (generated < received) totals_.tokens_duplicated += received - generated;
}

// --- ending ---

void RequestLifecycle::Complete(RequestRecord& record, FinishReason reason) {
  const Finish finish = record.MakeFinish(reason, now_);
  // An engine to which the request was passed may have another bound.
  if (reason == FinishReason::kLength && !record.request.passed.on &&
      record.delivered != record.request.max_new_tokens) {
    CountTokens(record.request.max_new_tokens, record.delivered);
    return Fail(record, absl::InternalError("the worker ended the request before its last token"));
  }
  ++totals_.completed;
  tenants_->totals().OnCompleted(record.tenant, record.request.tenant);
  if (spdlog::should_log(spdlog::level::debug))
    Trace(record, absl::StrCat("completed with ", record.delivered, " tokens"));
  std::optional<absl::Duration> since_first_token;
  if (record.first_token) since_first_token = now_ - *record.first_token;
  latencies_.OnCompleted(finish.prompt_tokens, record.delivered - record.had, now_ - record.accepted,
                         since_first_token);
  if (record.request.resumable) return Retain(record, finish);
  End(record, absl::OkStatus(), finish);
}

void RequestLifecycle::Fail(RequestRecord& record, const absl::Status& status) {
  Cancel(record.core_id);
  ++totals_.failed;
  Trace(record, status.message());
  End(record, status, std::nullopt);
}

void RequestLifecycle::EndQueued(RequestRecord& record) {
  ++totals_.queue_timeouts;
  const bool served = std::any_of(groups_.ranks.begin(), groups_.ranks.end(),
                                  [](const GroupRanks& group) { return group.ranks > 0; });
  const std::string waited = absl::StrCat("no worker could take the request within ",
                                          absl::FormatDuration(queue_.longest()), " (--max_queue_time)");
  // Without a serving rank, this router is no better for a retry than another one.
  Fail(record, served ? WithRetry(absl::ResourceExhaustedError(waited), kFullRetry)
                      : RetryLater(absl::StrCat(waited, "; no rank is serving")));
}

void RequestLifecycle::End(RequestRecord& record, const absl::Status& status, std::optional<Finish> finish) {
  if (record.sink != nullptr) EndSink(record.sink, status, std::move(finish));
  resumes_.OnForgotten(record);
  Discharge(record);
  resumes_.Release(record);
  table_.Erase(record.id);
}

void RequestLifecycle::Discharge(RequestRecord& record) {
  DropPrompt(record);
  aliases_.erase(record.core_id);
  queue_.Remove(record);
  overload_->Discharge(record);
  record.ticket.set_used(int64_t{record.request.prompt_tokens} + record.delivered);
  record.ticket.Release();
  agents_.Leave(record, cluster_->NextStep());
}

void RequestLifecycle::EndSink(const std::shared_ptr<TokenSink>& sink, const absl::Status& status,
                               std::optional<Finish> finish) {
  if (sink->End(status, std::move(finish))) FlushLater(sink);
  resumes_.Linger(sink, now_);
}

void RequestLifecycle::Detach(RequestRecord& record, const absl::Status& status) {
  EndSink(record.sink, status, std::nullopt);
  table_.SetSink(record, nullptr);
  resumes_.Wait(record, now_);
}

void RequestLifecycle::CutOff(RequestRecord& record) {
  LogEvent(lines_, spdlog::level::warn, "cut off", record, now_,
           "its client reads too slowly and is disconnected");
  ++totals_.slow_readers;
  const absl::Status status = WithRetry(
      absl::ResourceExhaustedError(absl::StrCat(
          "the client reads too slowly: more than ", options_.stream.buffer_tokens,
          " tokens were unread, or some for longer than ", absl::FormatDuration(options_.stream.timeout))),
      kFailedRetry);
  if (record.request.resumable) return Detach(record, status);
  Fail(record, status);
}

void RequestLifecycle::Retain(RequestRecord& record, const Finish& finish) {
  Discharge(record);
  if (record.sink != nullptr) {
    EndSink(record.sink, absl::OkStatus(), finish);
    table_.SetSink(record, nullptr);
  }
  resumes_.Retain(record, finish, now_);
}

void RequestLifecycle::Keep(core::RequestId id, int64_t bytes) {
  // Looked up in each iteration, because the removed request may be this one.
  while (RequestRecord* record = table_.Find(id)) {
    const ReplayBudget::Outcome outcome = resumes_.Charge(*record, bytes);
    if (outcome == ReplayBudget::Outcome::kKept) return;
    if (outcome == ReplayBudget::Outcome::kFull) {
      if (const auto oldest = resumes_.TakeOldestEnded(table_)) {
        End(*table_.Find(*oldest), absl::OkStatus(), std::nullopt);
        continue;
      }
    }
    return Forget(*record);
  }
}

void RequestLifecycle::Forget(RequestRecord& record) {
  resumes_.Release(record);
  record.forgotten = true;
  std::vector<uint32_t>().swap(record.history);
  record.history_logprobs = Logprobs();
  std::vector<uint32_t>().swap(record.request.prompt);
  record.request.passed.message = nullptr;
  record.request.resumable = false;
  if (record.ended) return End(record, absl::OkStatus(), std::nullopt);
  if (record.sink == nullptr) Fail(record, absl::UnavailableError("too large to be kept for a resume"));
}

// --- time ---

void RequestLifecycle::OnTimer(absl::Time now) {
  now_ = now;
  while (const auto id = resumes_.TakeExpired(table_, now)) {
    RequestRecord* record = table_.Find(*id);
    if (record == nullptr || record->sink != nullptr || record->resume_by > now) continue;
    if (!record->ended) {
      LogEvent(lines_, spdlog::level::info, "expired", *record, now_, "no client has resumed it");
      ++totals_.resume_expired;
      ++totals_.cancelled;
      Cancel(record->core_id);
    }
    End(*record, absl::CancelledError(), std::nullopt);
  }
  resumes_.BreakOffLingering(now);
  if (resumes_.has_early() && !Settling()) AnswerEarlyResumes();
  for (const core::RequestId id : agents_.Expire(now)) {
    RequestRecord* record = table_.FindLive(id);
    if (record == nullptr) continue;
    Cancel(record->core_id);
    ++totals_.cancelled;
    End(*record, AgentCalls::DeadlinePassed(), std::nullopt);
  }
  while (const auto id = queue_.Due(now)) {
    RequestRecord& record = *table_.Find(*id);
    if (record.hand_off == nullptr) {
      EndQueued(record);
    } else {
      ++totals_.hand_offs_expired;
      WaitAnew(record);
    }
  }
}

absl::Time RequestLifecycle::next_deadline() const {
  absl::Time next = std::min({resumes_.next_deadline(), agents_.next_deadline(), queue_.next_deadline()});
  if (resumes_.has_early()) next = std::min(next, SettleEnd());
  return next;
}

void RequestLifecycle::BeginDrain(absl::Time now) {
  now_ = now;
  draining_ = true;
  if (live() > 0) spdlog::info("draining {} requests", live());
  for (const EarlyResume& early : resumes_.TakeEarly()) EndSink(early.sink, ShuttingDown(), std::nullopt);
}

void RequestLifecycle::EndAll(absl::Time now) {
  now_ = now;
  for (const core::RequestId id : table_.Ids()) {
    if (RequestRecord* record = table_.FindLive(id); record != nullptr) Fail(*record, ShuttingDown());
  }
}

}  // namespace bfio::router
