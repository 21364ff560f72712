#include "router/frontend/client_stream.h"

#include <algorithm>

#include "common/net/status.h"
#include "common/net/wire_time.h"

namespace bfio::router {
namespace {

v1::FinishReason ToWire(FinishReason reason) {
  switch (reason) {
    case FinishReason::kLength: return v1::FINISH_REASON_LENGTH;
    case FinishReason::kStop: return v1::FINISH_REASON_STOP;
    case FinishReason::kAbort: return v1::FINISH_REASON_ABORT;
  }
  return v1::FINISH_REASON_UNSPECIFIED;
}

void FillFinish(const Finish& from, v1::Finish& out) {
  out.set_reason(ToWire(from.reason));
  out.mutable_usage()->set_prompt_tokens(from.prompt_tokens);
  out.mutable_usage()->set_completion_tokens(from.completion_tokens);
  v1::Timing& timing = *out.mutable_timing();
  SetDuration(from.queue, timing.mutable_queue());
  if (from.time_to_first_token) {
    SetDuration(*from.time_to_first_token, timing.mutable_time_to_first_token());
  }
  SetDuration(from.end_to_end, timing.mutable_end_to_end());
  timing.set_wait_steps(static_cast<uint64_t>(std::max<int64_t>(0, from.wait_steps)));
  if (from.rank) out.set_dp_rank(*from.rank);
}

void FillLogprobs(const LogprobsView& from, v1::Logprobs& out) {
  out.mutable_token_logprobs()->Add(from.tokens.begin(), from.tokens.end());
  for (const TopToken& top : from.top) {
    out.add_top_token_ids(top.id);
    out.add_top_logprobs(top.logprob);
  }
}

}  // namespace

std::shared_ptr<ClientStream> ClientStream::Create(grpc::CallbackServerContext* context, Options options) {
  std::shared_ptr<ClientStream> stream(new ClientStream(context, std::move(options)));
  stream->Open(stream);
  return stream;
}

ClientStream::Delivery ClientStream::Deliver(uint32_t index, absl::Span<const uint32_t> tokens,
                                             const LogprobsView& logprobs, absl::Time now) {
  MutexLock lock(&mutex_);
  if (ended() || broken()) return Delivery::kTaken;
  if (TooSlow(static_cast<int64_t>(pending_.size()) + pending_logprobs_.view().words(),
              static_cast<int64_t>(tokens.size()) + logprobs.words(), options_.limits, now)) {
    return Delivery::kTooSlow;
  }
  if (pending_.empty()) pending_first_index_ = index;
  pending_.insert(pending_.end(), tokens.begin(), tokens.end());
  pending_logprobs_.Append(logprobs);
  return MarkDirty() ? Delivery::kFlush : Delivery::kTaken;
}

void ClientStream::CatchUp(uint32_t index, absl::Span<const uint32_t> tokens, const LogprobsView& logprobs) {
  MutexLock lock(&mutex_);
  pending_first_index_ = index;
  pending_.assign(tokens.begin(), tokens.end());
  pending_logprobs_.Clear();
  pending_logprobs_.Append(logprobs);
}

bool ClientStream::End(const absl::Status& status, std::optional<router::Finish> finish) {
  MutexLock lock(&mutex_);
  if (!SetEnd(ToGrpcStatus(status))) return false;
  // The remaining tokens of a cancelled request are not sent.
  if (absl::IsCancelled(status)) {
    pending_.clear();
    pending_logprobs_.Clear();
  }
  if (status.ok()) finish_ = std::move(finish);
  return MarkDirty();
}

bool ClientStream::Next(v1::GenerateResponse& response) {
  if (pending_.empty() && !finish_) return false;
  if (response.request_id().empty()) response.set_request_id(request_id_);
  response.set_first_index(pending_.empty() ? finish_->completion_tokens : pending_first_index_);
  response.mutable_token_ids()->Assign(pending_.begin(), pending_.end());
  pending_.clear();
  response.clear_logprobs();
  if (!pending_logprobs_.empty()) FillLogprobs(pending_logprobs_.view(), *response.mutable_logprobs());
  pending_logprobs_.Clear();
  response.clear_resume_ticket();
  if (issue_ticket_ != nullptr) response.set_resume_ticket(std::exchange(issue_ticket_, nullptr)(model_));
  if (finish_) FillFinish(*std::exchange(finish_, std::nullopt), *response.mutable_finish());
  return true;
}

}  // namespace bfio::router
