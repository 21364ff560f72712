#include "router/frontend/client_stream.h"

#include <chrono>
#include <utility>

#include "common/net/tsan_edge.h"

namespace bfio::router {

std::shared_ptr<ClientStream> ClientStream::Create(grpc::CallbackServerContext* context, uint64_t id,
                                                   std::string request_id, const StreamLimits& limits,
                                                   std::function<void(bool)> on_cancel) {
  std::shared_ptr<ClientStream> stream(
      new ClientStream(context, id, std::move(request_id), limits, std::move(on_cancel)));
  stream->self_ = stream;
  GrpcHandOver(stream.get());
  return stream;
}

bool ClientStream::MarkDirty() {
  if (dirty_ || writing_) return false;  // whoever is at it will see the change
  dirty_ = true;
  return true;
}

ClientStream::Delivery ClientStream::Deliver(uint32_t index, absl::Span<const uint32_t> tokens,
                                             absl::Time now) {
  MutexLock lock(&mutex_);
  if (ended_) return Delivery::kTaken;
  if (writing_ && !stuck_since_) stuck_since_ = now;
  const auto waiting = static_cast<int64_t>(pending_.size());
  const bool full = waiting > 0 && waiting + static_cast<int64_t>(tokens.size()) > limits_.buffer_tokens;
  if (writing_ && (full || now - *stuck_since_ > limits_.timeout)) return Delivery::kTooSlow;
  if (pending_.empty()) pending_first_index_ = index;
  pending_.insert(pending_.end(), tokens.begin(), tokens.end());
  return MarkDirty() ? Delivery::kFlush : Delivery::kTaken;
}

void ClientStream::CatchUp(uint32_t index, absl::Span<const uint32_t> tokens) {
  MutexLock lock(&mutex_);
  pending_first_index_ = index;
  pending_.assign(tokens.begin(), tokens.end());
}

bool ClientStream::End(grpc::Status status, std::optional<v1::Finish> finish) {
  MutexLock lock(&mutex_);
  if (ended_) return false;
  ended_ = true;
  status_ = std::move(status);
  finish_ = std::move(finish);
  return MarkDirty();
}

void ClientStream::Flush() {
  // The operations are started under the lock: no callback runs inside them, and a second thread cannot slip
  // between the decision to write and the write.
  MutexLock lock(&mutex_);
  dirty_ = false;
  FlushLocked();
}

void ClientStream::FlushLocked() {
  if (writing_ || finished_ || breaking_) return;
  const bool may_write = !broken_ && status_.error_code() != grpc::StatusCode::CANCELLED;
  const bool have_tokens = may_write && !pending_.empty();
  const bool have_finish = may_write && ended_ && status_.ok() && finish_.has_value();
  if (!have_tokens && !have_finish) {
    if (!ended_) return;
    finished_ = true;
    GrpcHandOver(this);
    Finish(status_);
    return;
  }
  response_.Clear();
  response_.set_request_id(request_id_);
  if (have_tokens) {
    response_.set_first_index(pending_first_index_);
    response_.mutable_token_ids()->Add(pending_.begin(), pending_.end());
    pending_.clear();
  }
  if (have_finish) {
    if (!have_tokens) response_.set_first_index(finish_->usage().completion_tokens());
    *response_.mutable_finish() = *std::move(finish_);
    finish_.reset();
  }
  writing_ = true;
  // Not together with Finish: until the last message is taken the call must be one that BreakOff can cancel.
  GrpcHandOver(this);
  StartWrite(&response_);
}

void ClientStream::BreakOff() {
  {
    MutexLock lock(&mutex_);
    if (!ended_ || !writing_ || finished_ || breaking_) return;
    breaking_ = true;
  }
  // Finish has not been called, and is not while breaking_: the call, and with it the context, is alive.
  context_->TryCancel();
  MutexLock lock(&mutex_);
  breaking_ = false;
  FlushLocked();
}

void ClientStream::OnWriteDone(bool ok) {
  const GrpcReaction reaction(this);
  MutexLock lock(&mutex_);
  writing_ = false;
  stuck_since_.reset();
  if (!ok) {  // the call is dead; OnCancel tells the router, which ends the stream
    broken_ = true;
    pending_.clear();
    finish_.reset();
  }
  FlushLocked();
}

void ClientStream::OnCancel() {
  const GrpcReaction reaction(this);
  on_cancel_(context_->deadline() <= std::chrono::system_clock::now());
}

void ClientStream::OnDone() {
  GrpcTakeOver(this);
  // Moved out first: releasing the last reference destroys *this.
  const std::shared_ptr<ClientStream> self = std::move(self_);
}

}  // namespace bfio::router
