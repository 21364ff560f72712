// The decision loop's streams that break and go on: a client that comes back, a router that was restarted.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/spdlog.h"
#include "common/net/status.h"
#include "router/app/decision_loop.h"
#include "router/frontend/retry.h"
#include "router/worker_link/held_request.h"

namespace bfio::router {
namespace {

// Of token ids.
int64_t BytesOf(const v1::GenerateRequest& request) {
  return int64_t{4} * (int64_t{request.token_ids().ids_size()} + request.received_token_ids_size());
}

}  // namespace

bool DecisionLoop::Resume(core::RequestId id, v1::GenerateRequest& request,
                          const std::shared_ptr<ClientStream>& stream) {
  const auto refuse = [&](const absl::Status& status) {
    totals_.set_resume_refused(totals_.resume_refused() + 1);
    EndStream(stream, ToGrpcStatus(status), std::nullopt);
    return true;
  };
  const absl::Status unknown =
      absl::NotFoundError(absl::StrCat("no request ", request.request_id(), " to go on with"));
  RequestRecord* record = requests_.FindByName(request.request_id());
  const int64_t bytes = BytesOf(request);
  if (record == nullptr && Settling() && early_resumes_.size() < static_cast<size_t>(options_.max_waiting) &&
      early_bytes_ + bytes <= options_.max_waiting_bytes) {
    early_bytes_ += bytes;
    early_resumes_.push_back({id, std::move(request), stream});
    return true;
  }
  if (record == nullptr) {
    if (request.prompt_case() == v1::GenerateRequest::PROMPT_NOT_SET) return refuse(unknown);
    totals_.set_restarted(totals_.restarted() + 1);
    return false;
  }
  // In the words of a request that does not exist: whose it is, is nobody's business.
  if (!MayResume(record->request, request)) return refuse(unknown);
  if (!record->request.resumable()) {
    return refuse(absl::FailedPreconditionError(record->forgotten
                                                    ? "the request was too large to be kept for a resume"
                                                    : "the request is live and was not sent as resumable"));
  }
  if (request.resume_from_index() > record->request.max_new_tokens()) {
    return refuse(absl::InvalidArgumentError(
        absl::StrCat("resume_from_index is ", request.resume_from_index(), "; the request makes at most ",
                     record->request.max_new_tokens(), " tokens")));
  }
  Attach(*record, stream, request.resume_from_index());
  return true;
}

void DecisionLoop::TakeReceived(RequestRecord& record) {
  v1::GenerateRequest& request = record.request;
  // The last one is made again: if it was the last of all, or a stop token, the finish comes with it.
  const int known = std::max(0, request.received_token_ids_size() - 1);
  record.delivered = record.had = static_cast<uint32_t>(known);
  record.history.assign(request.received_token_ids().begin(), request.received_token_ids().begin() + known);
  google::protobuf::RepeatedField<uint32_t>().Swap(request.mutable_received_token_ids());
}

void DecisionLoop::Attach(RequestRecord& record, const std::shared_ptr<ClientStream>& stream, uint32_t from) {
  totals_.set_resumed(totals_.resumed() + 1);
  if (record.stream != nullptr) {
    EndStream(record.stream, grpc::Status(grpc::StatusCode::ABORTED, "another stream has taken over"),
              std::nullopt);
  }
  requests_.SetStream(record, stream);
  if (!stream->traceparent().empty()) record.traceparent = stream->traceparent();
  record.send_from = from;
  if (from < record.delivered) stream->CatchUp(from, absl::MakeConstSpan(record.history).subspan(from));
  if (!record.ended) return FlushLater(stream);
  // Kept on: this stream may break as the one before did.
  EndStream(stream, grpc::Status::OK, *record.ended);
  requests_.SetStream(record, nullptr);
}

void DecisionLoop::Detach(RequestRecord& record, grpc::Status status) {
  EndStream(record.stream, std::move(status), std::nullopt);
  requests_.SetStream(record, nullptr);
  record.resume_by = now_ + options_.resume_timeout;
  resume_deadlines_.emplace_back(record.resume_by, record.id);
}

void DecisionLoop::CutOff(RequestRecord& record) {
  spdlog::warn("request {}: its client takes no tokens and is cut off", record.LogName());
  totals_.set_slow_readers(totals_.slow_readers() + 1);
  const absl::Status status =
      WithRetry(absl::ResourceExhaustedError(absl::StrCat(
                    "the client reads too slowly: more than ", options_.stream.buffer_tokens,
                    " tokens waited for it, or some for ", absl::FormatDuration(options_.stream.timeout))),
                kFailedRetry);
  if (record.request.resumable()) return Detach(record, ToGrpcStatus(status));
  Fail(record, status);
}

void DecisionLoop::Retain(RequestRecord& record, const v1::Finish& finish) {
  record.ended = finish;
  record.rank.reset();
  Uncommit(record);
  ++ended_count_;
  ended_.push_back(record.id);
  if (record.stream != nullptr) {
    EndStream(record.stream, grpc::Status::OK, finish);
    requests_.SetStream(record, nullptr);
  }
  record.resume_by = now_ + options_.resume_timeout;
  resume_deadlines_.emplace_back(record.resume_by, record.id);
}

void DecisionLoop::ExpireResumes(absl::Time now) {
  while (!resume_deadlines_.empty() && resume_deadlines_.front().first <= now) {
    RequestRecord* record = requests_.Find(resume_deadlines_.front().second);
    resume_deadlines_.pop_front();
    if (record == nullptr || record->stream != nullptr || record->resume_by > now) continue;
    if (!record->ended) {
      spdlog::info("request {}: nobody has come back for it", record->LogName());
      totals_.set_resume_expired(totals_.resume_expired() + 1);
      totals_.set_cancelled(totals_.cancelled() + 1);
      scheduler_.Cancel(record->id);
    }
    End(*record, grpc::Status::CANCELLED, std::nullopt);
  }
  while (!ended_.empty() && requests_.Find(ended_.front()) == nullptr) ended_.pop_front();
  while (!lingering_.empty() && lingering_.front().first <= now) {
    if (const auto stream = lingering_.front().second.lock(); stream != nullptr) stream->BreakOff();
    lingering_.pop_front();
  }
  if (!early_resumes_.empty() && !Settling()) AnswerEarlyResumes();
}

absl::Time DecisionLoop::SettleEnd() const {
  // Those that have come may have waited for others until now, and have yet to say what they bring.
  const absl::Duration more = options_.restart_settle + 2 * options_.form_timeout;
  return settle_end_ + (group_.ExpectsAnnouncements() ? more : absl::ZeroDuration());
}

void DecisionLoop::AnswerEarlyResumes() {
  early_bytes_ = 0;
  // Those of requests that are still unknown are kept for another round, until patience ends.
  for (EarlyResume& early : std::exchange(early_resumes_, {})) {
    OnArrival(early.id, std::move(early.request), early.stream, {});
  }
}

void DecisionLoop::Keep(core::RequestId id, int64_t bytes) {
  // Looked up each time: it may be the ended one that makes way.
  while (RequestRecord* record = requests_.Find(id)) {
    const ReplayBudget::Outcome outcome = budget_.Charge(record->kept_bytes, bytes);
    if (outcome == ReplayBudget::Outcome::kKept) return;
    if (outcome == ReplayBudget::Outcome::kFull && EvictEnded()) continue;
    return Forget(*record);
  }
}

bool DecisionLoop::EvictEnded() {
  while (!ended_.empty()) {
    RequestRecord* record = requests_.Find(ended_.front());
    ended_.pop_front();
    if (record == nullptr) continue;
    End(*record, grpc::Status::OK, std::nullopt);
    return true;
  }
  return false;
}

void DecisionLoop::Forget(RequestRecord& record) {
  budget_.Release(record.kept_bytes);
  record.forgotten = true;
  std::vector<uint32_t>().swap(record.history);
  record.request.set_prompt_length(PromptTokens(record.request));  // lets go of the ids
  record.request.set_resumable(false);
  if (record.ended) return End(record, grpc::Status::OK, std::nullopt);
  if (record.stream == nullptr) Fail(record, absl::UnavailableError("too large to be kept"));
}

}  // namespace bfio::router
