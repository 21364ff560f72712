// RequestLifecycle: arrival of new requests, resumes, and recovery of requests that workers hold.
#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/spdlog.h"
#include "common/telemetry/log_fields.h"
#include "router/requests/request_lifecycle.h"
#include "router/requests/resume_rights.h"
#include "router/requests/retry.h"

namespace bfio::router {

namespace {

// True when the client has tokens whose model is known.
bool HasTokensOfAModel(const ClientRequest& request) {
  return request.resume_from.value_or(0) > 0 && !request.model.empty();
}

}  // namespace

void RequestLifecycle::OnArrival(Arrival arrival, absl::Time now) {
  now_ = now;
  const std::shared_ptr<TokenSink> sink = arrival.sink;
  const auto refuse = [&](const absl::Status& status) {
    if (sink->End(status, std::nullopt)) FlushLater(sink);
  };
  if (draining_) return refuse(ShuttingDown());
  const bool restarts = arrival.request.resume_from.has_value();
  bool ahead = false;
  if (restarts) {
    if (Resume(arrival.id, arrival.request, sink)) return;
    ahead = MayGoAhead(arrival.request);
    if (ahead) {
      arrival.ticket = tenants_->Charged(arrival.request, now_);
    } else {
      auto entered = tenants_->Enter(arrival.request, now_);
      if (!entered.ok()) return refuse(entered.status());
      arrival.ticket = *std::move(entered);
    }
  }
  const absl::StatusOr<RequestRecord*> added = AddToTable(arrival);
  if (!added.ok()) return refuse(added.status());
  RequestRecord* const record = *added;
  if (restarts) TakeReceived(*record);
  if (!ahead) record->claimed = record->had;
  if (absl::Status status = Admit(*record, ahead); !status.ok()) {
    table_.Erase(arrival.id);
    return refuse(status);
  }
  if (ahead) {
    ++went_ahead_count_;
    went_ahead_[record->request.tenant].insert(record->request.request_id);
  }
  CountAccepted(*record);
  overload_->Charge(*record);
  // No queue deadline for requests that an earlier router had accepted or that have begun.
  if (!ahead && record->delivered == 0) queue_.Add(*record, now_);
  SetModelOf(*record);
  if (record->send_from < record->delivered) {
    // A client with log-probabilities already has all tokens whose log-probabilities are not kept
    // (check_request.h).
    sink->CatchUp(record->send_from, absl::MakeConstSpan(record->history).subspan(record->send_from), {});
    FlushLater(sink);
  }
}

absl::StatusOr<RequestRecord*> RequestLifecycle::AddToTable(Arrival& arrival) {
  const uint32_t tenant = tenants_->Number(arrival.request.tenant);
  const std::string name = arrival.request.request_id;
  const bool first = arrival.request.output == 0;
  // The id of a cancelled call is free at once.
  for (const core::RequestId id :
       first ? table_.IdsOf(arrival.request.tenant, name) : std::vector<core::RequestId>()) {
    const RequestRecord& holder = *table_.Find(id);
    if (!holder.request.resumable && holder.sink != nullptr && holder.sink->Cancelled())
      OnCancel(holder.sink->id(), /*timed_out=*/false, now_);
  }
  RequestRecord* const record =
      table_.Add(arrival.id, std::move(arrival.request), arrival.sink, tenant, now_);
  if (record == nullptr) {
    ++totals_.refused_invalid;
    return absl::AlreadyExistsError(absl::StrCat("a request is already running with the request_id ", name));
  }
  record->ticket = std::move(arrival.ticket);
  return record;
}

void RequestLifecycle::CountAccepted(const RequestRecord& record) {
  ++totals_.accepted;
  // An earlier router has counted the arrival of a restarted request.
  tenants_->totals().OnAccepted(record.tenant, record.request.tenant, record.request.prompt_tokens);
}

absl::Status RequestLifecycle::AdmitOutputs(std::vector<Arrival>& outputs,
                                            std::vector<RequestRecord*>& admitted) {
  int64_t own_kv = 0;
  for (Arrival& output : outputs) {
    const absl::StatusOr<RequestRecord*> added = AddToTable(output);
    if (!added.ok()) return added.status();
    if (absl::Status status = Admit(**added, /*ahead=*/false, own_kv); !status.ok()) {
      table_.Erase(output.id);
      return status;
    }
    overload_->Charge(**added);
    own_kv += (*added)->committed_kv;
    admitted.push_back(*added);
  }
  return absl::OkStatus();
}

void RequestLifecycle::OnCall(std::vector<Arrival> outputs, absl::Time now) {
  now_ = now;
  std::vector<RequestRecord*> admitted;
  const absl::Status status = draining_ ? ShuttingDown() : AdmitOutputs(outputs, admitted);
  if (status.ok()) {
    for (RequestRecord* record : admitted) {
      CountAccepted(*record);
      queue_.Add(*record, now_);
    }
    return;
  }
  // As if they had never arrived: their tickets return everything that the tenant was charged.
  for (RequestRecord* record : admitted) {
    Cancel(record->core_id);
    DropPrompt(*record);
    overload_->Discharge(*record);
    agents_.Leave(*record, cluster_->NextStep());
    table_.Erase(record->id);
  }
  for (const Arrival& output : outputs) {
    if (output.sink->End(status, std::nullopt)) FlushLater(output.sink);
  }
}

bool RequestLifecycle::MayGoAhead(const ClientRequest& request) {
  if (now_ - started_ > options_.resume.timeout) {
    went_ahead_.clear();
    return false;
  }
  if (!request.resume_proven) return false;
  const auto own = went_ahead_.find(request.tenant);
  if (own == went_ahead_.end()) return went_ahead_count_ < options_.resume.max_early;
  // A ticket may be that of a request that has ended, but no more than the limit were running at a time.
  const int64_t concurrent = tenants_->Concurrent(request.tenant);
  const auto count = static_cast<int64_t>(own->second.size());
  return (concurrent == 0 || count < concurrent) && count < options_.resume.max_early - went_ahead_count_ &&
         !own->second.contains(request.request_id);
}

absl::Status RequestLifecycle::FindRank(RequestRecord& record) {
  if (!record.request.rank) return absl::OkStatus();
  ranks_named_ = true;
  const std::string named = absl::StrCat("data_parallel_rank is ", *record.request.rank);
  const auto later = [&](absl::string_view why) {
    return WithRetry(absl::UnavailableError(absl::StrCat(named, "; ", why)), kFailedRetry);
  };
  int64_t before = 0;
  for (const GroupRanks& group : groups_.ranks) {
    // This group's ranks will have the numbers from here on, so ranks of later groups must not get these
    // numbers.
    if (group.returns) return later("the group of this or a lower rank is re-forming");
    const int64_t worker = int64_t{*record.request.rank} - before;
    if (worker < group.ranks) {
      if (group.hands_over) {
        ++totals_.refused_invalid;
        return absl::InvalidArgumentError(
            absl::StrCat(named, ", a rank that computes prompts for other ranks only"));
      }
      record.held_to = {group.group, static_cast<core::WorkerIndex>(worker)};
      FitToRank(record);
      return absl::OkStatus();
    }
    before += group.ranks;
  }
  if (before == 0) return later("no rank is serving");
  if (!groups_.complete) return later("not all workers have connected yet");
  ++totals_.refused_invalid;
  return absl::InvalidArgumentError(absl::StrCat(named, "; it must be below ", before));
}

std::optional<int64_t> RequestLifecycle::LongestOnItsRank(const RequestRecord& record) const {
  const core::Scheduler* const group = cluster_->group(record.held_to->group);
  if (group == nullptr || !group->open() || record.held_to->worker >= group->num_workers())
    return std::nullopt;
  const core::WorkerSpec& worker = group->Account(record.held_to->worker).spec;
  // The last token needs no KV memory.
  return std::min(worker.longest(), worker.kv_tokens + 1);
}

void RequestLifecycle::FitToRank(RequestRecord& record) const {
  const std::optional<int64_t> longest = LongestOnItsRank(record);
  if (!longest || !record.request.max_new_tokens_unset) return;
  // A prompt that leaves no space for output is refused as too long.
  const int64_t left = std::max<int64_t>(1, *longest - record.request.prompt_tokens);
  record.request.max_new_tokens =
      static_cast<uint32_t>(std::min(left, static_cast<int64_t>(record.request.max_new_tokens)));
}

absl::Status RequestLifecycle::Admit(RequestRecord& record, bool ahead, int64_t own_kv) {
  if (absl::Status status = FindRank(record); !status.ok()) return status;
  absl::Status checked = CheckHandOff(record);
  checked.Update(CheckFits(record));
  if (!checked.ok()) {
    ++totals_.refused_invalid;
    return checked;
  }
  if (absl::Status status = overload_->CheckShare(record.request.tenant); !status.ok()) {
    ++totals_.refused_pool_full;
    return WithRetry(std::move(status), kFullRetry);
  }
  if (absl::Status status = overload_->Check(record, own_kv); !status.ok()) {
    ++totals_.refused_memory;
    return WithRetry(std::move(status), kFullRetry);
  }
  if (absl::Status status = agents_.Check(record, cluster_->NextStep(), groups_.shortest_step, now_);
      !status.ok()) {
    ++totals_.refused_parent_deadline;
    return status;
  }
  record.hand_off = record.request.hand_off;
  ChooseHandOver(record);
  core::RequestSpec spec = record.Spec(cluster_->NextStep());
  if (ahead && record.delivered > 0) spec.priority += BegunBonus();
  absl::Status status = cluster_->Apply(core::Enqueue{spec}).status;
  if (!status.ok()) DropPrompt(record);
  if (absl::IsResourceExhausted(status)) {
    ++totals_.refused_pool_full;
    return WithRetry(std::move(status), kFullRetry);
  }
  if (!status.ok()) return status;
  if (record.hand_off != nullptr) used_hand_offs_.Add(*record.hand_off);
  record.request.hand_off = nullptr;
  // Only after acceptance, because a refused call must not create or evict a parent.
  if (!record.request.parent_id.empty()) ++totals_.agent_calls;
  agents_.Join(record, cluster_->NextStep());
  return absl::OkStatus();
}

absl::Status RequestLifecycle::CheckFits(const RequestRecord& record) const {
  // Before the first epoch of a group of its model it is unknown what workers can run.
  bool known = false, logprobs = false, passes = false;
  int64_t longest = 0;
  // Of any group: 0, if it is unknown there.
  uint32_t ids = 1;
  for (const GroupCapacity& group : groups_.capacities) {
    if (record.model != 0 && group.model != 0 && group.model != record.model) continue;
    known = true;
    ids = group.vocabulary == 0 || ids == 0 ? 0 : std::max(ids, group.vocabulary);
    logprobs |= group.logprobs;
    passes |= group.passes;
    if ((group.logprobs || !record.request.sampling.logprobs) && (group.passes || !record.request.passed.on))
      longest = std::max(longest, group.max_sequence_tokens());
  }
  if (record.request.sampling.logprobs && known && !logprobs) {
    return absl::InvalidArgumentError("logprobs is not supported: no workers compute log-probabilities");
  }
  if (record.request.passed.on && known && !passes) {
    return absl::InvalidArgumentError(
        "the request can only be forwarded to engines with the gateway's protocol, and no workers are such "
        "engines");
  }
  // Some engines end with such a request, or read other memory.
  if (known && ids > 0 && record.request.largest_id >= ids) {
    return absl::InvalidArgumentError(
        absl::StrCat("the prompt has token id ", record.request.largest_id, "; the model's are below ", ids));
  }
  const int64_t tokens = int64_t{record.request.prompt_tokens} + record.request.max_new_tokens;
  const auto too_long = [&](absl::string_view where, int64_t longest) {
    return absl::InvalidArgumentError(absl::StrCat("the prompt and the largest output are ", tokens,
                                                   " tokens; ", where, " at most ", longest, " per request"));
  };
  if (known && tokens > longest) return too_long("the workers hold", longest);
  if (!record.held_to) return absl::OkStatus();
  // The request might fit another rank with more memory.
  const std::optional<int64_t> there = LongestOnItsRank(record);
  if (!there || tokens <= *there) return absl::OkStatus();
  return too_long(absl::StrCat("data_parallel_rank ", *record.request.rank, " holds"), *there);
}

// --- resumes ---

bool RequestLifecycle::Resume(core::RequestId id, ClientRequest& request,
                              const std::shared_ptr<TokenSink>& sink) {
  const auto refuse = [&](const absl::Status& status) {
    ++totals_.resume_refused;
    EndSink(sink, status, std::nullopt);
    return true;
  };
  const absl::Status unknown =
      absl::NotFoundError(absl::StrCat("no request ", request.request_id, " to resume"));
  RequestRecord* record = table_.FindByName(request.tenant, request.request_id);
  if (record == nullptr && Settling()) {
    EarlyResume early{id, std::move(request), sink};
    if (resumes_.Hold(early, tenants_->Concurrent(early.request.tenant))) return true;
    // A worker may still announce the request.
    return refuse(WithRetry(
        absl::UnavailableError("the router has just started, and too many clients resume at once; retry"),
        kFailedRetry));
  }
  if (record == nullptr) {
    if (!request.has_prompt()) return refuse(unknown);
    if (HasTokensOfAModel(request) && NumberOf(request.model) == 0)
      return refuse(ModelGone(*request.resume_from));
    ++totals_.restarted;
    return false;
  }
  // The same message as for a request that does not exist, so that the client learns nothing about other
  // clients' requests.
  if (!MayResume(record->request, request)) return refuse(unknown);
  if (!record->request.resumable) {
    return refuse(absl::FailedPreconditionError(
        record->forgotten ? "the request was too large to be kept for a resume (--request_memory_mb)"
                          : "the request cannot be resumed: it was sent without resumable"));
  }
  if (*request.resume_from > record->request.max_new_tokens) {
    return refuse(absl::InvalidArgumentError(absl::StrCat("resume_from_index is ", *request.resume_from,
                                                          "; the request generates at most ",
                                                          record->request.max_new_tokens, " tokens")));
  }
  if (record->keeps_logprobs() && *request.resume_from < record->logprobs_from()) {
    return refuse(absl::FailedPreconditionError(absl::StrCat(
        "resume_from_index is ", *request.resume_from, "; the log-probabilities of tokens before ",
        record->logprobs_from(), " are no longer kept")));
  }
  Attach(*record, sink, *request.resume_from);
  return true;
}

void RequestLifecycle::TakeReceived(RequestRecord& record) const {
  if (HasTokensOfAModel(record.request)) record.model = NumberOf(record.request.model);
  // The last received token is generated again: if it was the final one, the finish arrives with it.
  record.history = std::move(record.request.received);
  if (!record.history.empty()) record.history.pop_back();
  record.delivered = record.had = static_cast<uint32_t>(record.history.size());
  std::vector<uint32_t>().swap(record.request.received);
}

void RequestLifecycle::Attach(RequestRecord& record, const std::shared_ptr<TokenSink>& sink, uint32_t from) {
  ++totals_.resumed;
  if (record.sink != nullptr)
    EndSink(record.sink, absl::AbortedError("another stream has resumed the request"), std::nullopt);
  table_.SetSink(record, sink);
  if (!sink->traceparent().empty()) record.traceparent = sink->traceparent();
  record.send_from = from;
  SetModelOf(record);
  if (from < record.delivered) {
    LogprobsView logprobs;
    if (record.keeps_logprobs())
      logprobs = record.history_logprobs.view().subspan(from - record.logprobs_from());
    sink->CatchUp(from, absl::MakeConstSpan(record.history).subspan(from), logprobs);
  }
  if (!record.ended) return FlushLater(sink);
  // The request is kept, because this stream may break as well.
  EndSink(sink, absl::OkStatus(), *record.ended);
  table_.SetSink(record, nullptr);
}

absl::Time RequestLifecycle::SettleEnd() const {
  // Connected workers may have waited for others until now, and have not announced their requests yet.
  return started_ + options_.restart_settle +
         (groups_.expects_announcements ? options_.announce_settle : absl::ZeroDuration());
}

void RequestLifecycle::AnswerEarlyResumes() {
  // Resumes of requests that are still unknown are held again, until SettleEnd.
  for (EarlyResume& early : resumes_.TakeEarly())
    OnArrival({early.id, std::move(early.request), early.sink, {}}, now_);
}

// --- requests of an earlier router ---

void RequestLifecycle::Requeue(RequestRecord& record) {
  DropPrompt(record);
  record.hand_off = nullptr;
  record.hand_off_used = false;
  ChooseHandOver(record);
  if (record.hands_over) record.model = 0;
  EnterAgain(record);
}

void RequestLifecycle::EnterAgain(RequestRecord& record) {
  // The worker had accepted the request.
  record.refused_since.reset();
  core::RequestSpec spec = record.Spec(cluster_->NextStep());
  // A request that has begun goes before all that have not, even if it has no token yet.
  if (record.placed) spec.priority += BegunBonus();
  cluster_->Apply(core::Requeue{spec});
  EndIfRankGone(record);
}

std::vector<core::RequestSpec> RequestLifecycle::Recover(const Holder& holder,
                                                         std::vector<HeldRequest> held) {
  std::vector<core::RequestSpec> recovered;
  Generated active;
  for (const HeldActive& one : holder.active) active.emplace(one.id, one.generated_tokens);
  int64_t taken = 0, kv_left = holder.kv_tokens;
  for (HeldRequest& request : held) taken += RecoverOne(request, active, kv_left, recovered) ? 1 : 0;
  const ScopedLogFields fields{{"worker", holder.worker_id}};
  if (taken > 0)
    spdlog::info("worker {} holds {} requests of an earlier router, which are recovered",
                 std::string(holder.worker_id), taken);
  return recovered;
}

bool RequestLifecycle::RecoverOne(HeldRequest& held, const Generated& active, int64_t& kv_left,
                                  std::vector<core::RequestSpec>& recovered) {
  // Announced twice; or a client has started the request again meanwhile; or it was placed again on another
  // worker, and this one still computes it although it has ended here. This worker has to drop its copy.
  if (table_.Find(held.id) != nullptr || cluster_->Knows(held.id) ||
      table_.FindByName(held.request.tenant, held.request.request_id) != nullptr) {
    return false;
  }
  if (!held.ended) {
    const auto runs = active.find(held.id);
    if (runs == active.end()) return false;
    const auto known = static_cast<uint32_t>(held.tokens.size()) - held.first_index;
    CountTokens(runs->second, known);
    if (runs->second != known) return false;
  }
  const uint32_t tenant = tenants_->Number(held.request.tenant);
  RequestRecord* record = table_.Add(held.id, std::move(held.request), nullptr, tenant, now_);
  record->delivered = record->had = static_cast<uint32_t>(held.tokens.size());
  record->placed_at = held.first_index;
  record->placed_model = held.model;
  if (record->delivered > 0) record->model = held.model;
  record->history = std::move(held.tokens);
  record->history_logprobs = std::move(held.logprobs);
  record->placed = now_;
  if (record->delivered > 0) record->first_token = record->last_token = now_;
  ++totals_.accepted;
  tenants_->totals().OnAccepted(record->tenant, record->request.tenant, record->request.prompt_tokens);
  ++totals_.recovered;
  const core::RequestId id = record->id;
  overload_->Charge(*record, kv_left);
  kv_left -= record->committed_kv;
  if (held.ended) {
    ++totals_.completed;
    tenants_->totals().OnCompleted(record->tenant, record->request.tenant);
    Retain(*record, record->MakeFinish(*held.ended, now_));
  } else {
    resumes_.Wait(*record, now_);
  }
  // The additional byte makes requests without tokens count as kept.
  Keep(id, 1 + record->request.prompt_bytes() + int64_t{4} * record->delivered +
               int64_t{4} * record->history_logprobs.view().words());
  record = table_.Find(id);
  if (record != nullptr && !record->ended) recovered.push_back(record->Spec(cluster_->NextStep()));
  return true;
}

}  // namespace bfio::router
