// RequestLifecycle: how requests come in: new ones, clients that come back, and what workers hold.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/spdlog.h"
#include "common/telemetry/log_fields.h"
#include "router/requests/request_lifecycle.h"
#include "router/requests/resume_rights.h"
#include "router/requests/retry.h"

namespace bfio::router {

namespace {

// The client has tokens, and which model they are of is known.
bool HasTokensOfAModel(const ClientRequest& request) {
  return request.resume_from.value_or(0) > 0 && !request.model.empty();
}

}  // namespace

void RequestLifecycle::OnArrival(core::RequestId id, ClientRequest request, std::shared_ptr<TokenSink> sink,
                                 TenantLimiter::Ticket ticket, absl::Time now) {
  now_ = now;
  const auto refuse = [&](const absl::Status& status) {
    if (sink->End(status, std::nullopt)) FlushLater(sink);
  };
  if (draining_) return refuse(ShuttingDown());
  const bool restarts = request.resume_from.has_value();
  bool ahead = false;
  if (restarts) {
    if (Resume(id, request, sink)) return;
    ahead = MayGoAhead(request);
    if (!ahead) {
      auto entered = tenants_->Enter(request, now_);
      if (!entered.ok()) return refuse(entered.status());
      ticket = *std::move(entered);
    }
  }
  const std::pair<std::string, std::string> name(request.tenant, request.request_id);
  const uint32_t tenant = tenants_->Number(request.tenant);
  RequestRecord* record = table_.Add(id, std::move(request), sink, tenant, now_);
  if (record == nullptr && table_.FindByName(name.first, name.second) == nullptr) {
    // A worker has brought a request of that number since it was given out.
    return refuse(
        WithRetry(absl::UnavailableError("the router has just taken over from another"), kFailedRetry));
  }
  if (record == nullptr) {
    ++totals_.refused_invalid;
    return refuse(absl::AlreadyExistsError(absl::StrCat("a live request has the request_id ", name.second)));
  }
  record->ticket = std::move(ticket);
  if (restarts) TakeReceived(*record);
  if (!ahead) record->claimed = record->had;
  if (absl::Status status = Admit(*record, ahead); !status.ok()) {
    table_.Erase(id);
    return refuse(status);
  }
  ++totals_.accepted;
  if (ahead) went_ahead_.insert(name);
  // A request that an earlier router accepted is not charged again.
  if (!restarts) arrivals_.Add(now_);
  tenants_->totals().OnAccepted(record->tenant, record->request.tenant, record->request.prompt_tokens);
  overload_->Charge(*record);
  TellModel(*record);
  if (record->send_from < record->delivered) {
    sink->CatchUp(record->send_from, absl::MakeConstSpan(record->history).subspan(record->send_from));
    FlushLater(sink);
  }
}

bool RequestLifecycle::MayGoAhead(const ClientRequest& request) {
  if (now_ - started_ > options_.resume.timeout) {
    went_ahead_.clear();
    return false;
  }
  return request.resume_proven && static_cast<int64_t>(went_ahead_.size()) < options_.resume.max_early &&
         !went_ahead_.contains(std::pair(request.tenant, request.request_id));
}

absl::Status RequestLifecycle::Admit(RequestRecord& record, bool ahead) {
  if (absl::Status status = CheckFits(record); !status.ok()) {
    ++totals_.refused_invalid;
    return status;
  }
  if (absl::Status status = overload_->Check(record); !status.ok()) {
    ++totals_.refused_memory;
    return WithRetry(std::move(status), kFullRetry);
  }
  if (absl::Status status = agents_.Look(record, cluster_->NextStep(), groups_.shortest_step, now_);
      !status.ok()) {
    ++totals_.refused_parent_deadline;
    return status;
  }
  core::RequestSpec spec = record.Spec(cluster_->NextStep());
  if (ahead && record.delivered > 0) spec.priority += BegunBonus();
  absl::Status status = cluster_->Apply(core::Enqueue{spec}).status;
  if (absl::IsResourceExhausted(status)) {
    ++totals_.refused_pool_full;
    return WithRetry(std::move(status), kFullRetry);
  }
  if (!status.ok()) return status;
  // Only now: a call that is refused makes no parent, and puts none out of the book.
  if (!record.request.parent_id.empty()) ++totals_.agent_calls;
  agents_.Join(record, cluster_->NextStep());
  return absl::OkStatus();
}

absl::Status RequestLifecycle::CheckFits(const RequestRecord& record) const {
  const int64_t tokens = int64_t{record.request.prompt_tokens} + record.request.max_new_tokens;
  if (!groups_.max_sequence_tokens || tokens <= *groups_.max_sequence_tokens) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("prompt + max_new_tokens is ", tokens,
                                                 " tokens; the workers hold at most ",
                                                 *groups_.max_sequence_tokens, " per request"));
}

// --- clients that come back ---

bool RequestLifecycle::Resume(core::RequestId id, ClientRequest& request,
                              const std::shared_ptr<TokenSink>& sink) {
  const auto refuse = [&](const absl::Status& status) {
    ++totals_.resume_refused;
    EndSink(sink, status, std::nullopt);
    return true;
  };
  const absl::Status unknown =
      absl::NotFoundError(absl::StrCat("no request ", request.request_id, " to go on with"));
  RequestRecord* record = table_.FindByName(request.tenant, request.request_id);
  if (record == nullptr && Settling()) {
    EarlyResume early{id, std::move(request), sink};
    if (resumes_.Hold(early)) return true;
    // Some worker may yet bring its request.
    return refuse(
        WithRetry(absl::UnavailableError("the router has just started, and too many clients resume at once"),
                  kFailedRetry));
  }
  if (record == nullptr) {
    if (!request.has_prompt()) return refuse(unknown);
    if (HasTokensOfAModel(request) && NumberOf(request.model) == 0)
      return refuse(ModelGone(*request.resume_from));
    ++totals_.restarted;
    return false;
  }
  // The same message as for a request that does not exist, so that it reveals nothing.
  if (!MayResume(record->request, request)) return refuse(unknown);
  if (!record->request.resumable) {
    return refuse(absl::FailedPreconditionError(record->forgotten
                                                    ? "the request was too large to be kept for a resume"
                                                    : "the request is live and was not sent as resumable"));
  }
  if (*request.resume_from > record->request.max_new_tokens) {
    return refuse(absl::InvalidArgumentError(absl::StrCat("resume_from_index is ", *request.resume_from,
                                                          "; the request makes at most ",
                                                          record->request.max_new_tokens, " tokens")));
  }
  Attach(*record, sink, *request.resume_from);
  return true;
}

void RequestLifecycle::TakeReceived(RequestRecord& record) const {
  if (HasTokensOfAModel(record.request)) record.model = NumberOf(record.request.model);
  // The last one is made again: if it was the last of all, or a stop token, the finish comes with it.
  record.history = std::move(record.request.received);
  if (!record.history.empty()) record.history.pop_back();
  record.delivered = record.had = static_cast<uint32_t>(record.history.size());
  std::vector<uint32_t>().swap(record.request.received);
}

void RequestLifecycle::Attach(RequestRecord& record, const std::shared_ptr<TokenSink>& sink, uint32_t from) {
  ++totals_.resumed;
  if (record.sink != nullptr)
    EndSink(record.sink, absl::AbortedError("another stream has taken over"), std::nullopt);
  table_.SetSink(record, sink);
  if (!sink->traceparent().empty()) record.traceparent = sink->traceparent();
  record.send_from = from;
  TellModel(record);
  if (from < record.delivered) sink->CatchUp(from, absl::MakeConstSpan(record.history).subspan(from));
  if (!record.ended) return FlushLater(sink);
  // Kept on: this stream may break as the one before did.
  EndSink(sink, absl::OkStatus(), *record.ended);
  table_.SetSink(record, nullptr);
}

absl::Time RequestLifecycle::SettleEnd() const {
  // Workers that have come may have waited for others until now, and have yet to say what they bring.
  return started_ + options_.restart_settle +
         (groups_.expects_announcements ? options_.announce_settle : absl::ZeroDuration());
}

void RequestLifecycle::AnswerEarlyResumes() {
  // Those of requests that are still unknown are kept for another round, until patience ends.
  for (EarlyResume& early : resumes_.TakeEarly())
    OnArrival(early.id, std::move(early.request), early.sink, {}, now_);
}

// --- requests of an earlier router ---

std::vector<core::RequestSpec> RequestLifecycle::Recover(absl::string_view worker_id,
                                                         std::vector<HeldRequest> held,
                                                         absl::Span<const HeldActive> active) {
  std::vector<core::RequestSpec> recovered;
  int64_t taken = 0;
  for (HeldRequest& request : held) taken += RecoverOne(worker_id, request, active, recovered) ? 1 : 0;
  const ScopedLogFields fields{{"worker", worker_id}};
  if (taken > 0)
    spdlog::info("worker {} brings {} requests of an earlier router", std::string(worker_id), taken);
  return recovered;
}

bool RequestLifecycle::RecoverOne(absl::string_view worker_id, HeldRequest& held,
                                  absl::Span<const HeldActive> active,
                                  std::vector<core::RequestSpec>& recovered) {
  // A client has started it again meanwhile: the worker has to drop its own.
  if (table_.Find(held.id) != nullptr ||
      table_.FindByName(held.request.tenant, held.request.request_id) != nullptr) {
    return false;
  }
  if (!held.ended) {
    const auto runs =
        std::find_if(active.begin(), active.end(), [&](const HeldActive& a) { return a.id == held.id; });
    if (runs == active.end()) return false;
    const auto known = static_cast<uint32_t>(held.tokens.size()) - held.first_index;
    CountTokens(runs->generated_tokens, known);
    if (runs->generated_tokens != known) return false;
  }
  const uint32_t tenant = tenants_->Number(held.request.tenant);
  RequestRecord* record = table_.Add(held.id, std::move(held.request), nullptr, tenant, now_);
  record->delivered = record->had = static_cast<uint32_t>(held.tokens.size());
  record->placed_at = held.first_index;
  record->placed_model = held.model;
  if (record->delivered > 0) record->model = held.model;
  record->history = std::move(held.tokens);
  record->placed = now_;
  if (record->delivered > 0) record->first_token = now_;
  ids_->SkipPast(record->id);
  ++totals_.accepted;
  tenants_->totals().OnAccepted(record->tenant, record->request.tenant, record->request.prompt_tokens);
  ++totals_.adopted;
  const core::RequestId id = record->id;
  overload_->Charge(*record);
  if (held.ended) {
    ++totals_.completed;
    tenants_->totals().OnCompleted(record->tenant, record->request.tenant);
    Retain(*record, record->MakeFinish(*held.ended, now_));
  } else {
    resumes_.Wait(*record, now_);
  }
  // 1: what is kept without any token is kept, too.
  Keep(id, 1 + record->request.prompt_bytes() + int64_t{4} * record->delivered);
  record = table_.Find(id);
  if (record != nullptr && !record->ended) recovered.push_back(record->Spec(cluster_->NextStep()));
  return true;
}

}  // namespace bfio::router
