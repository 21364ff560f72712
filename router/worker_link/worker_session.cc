#include "router/worker_link/worker_session.h"

#include <utility>

#include "common/base/clock.h"
#include "common/net/tsan_edge.h"

namespace bfio::router {

template <typename In, typename Out>
std::shared_ptr<MessageSession<In, Out>> MessageSession<In, Out>::Create(
    std::string peer, Callbacks callbacks, grpc::CallbackServerContext* context) {
  std::shared_ptr<MessageSession> session(new MessageSession(std::move(peer), std::move(callbacks), context));
  session->self_ = session;
  GrpcHandOver(session.get());
  session->StartRead(&session->incoming_);
  return session;
}

template <typename In, typename Out>
void MessageSession<In, Out>::Send(Out message) {
  MutexLock lock(&mutex_);
  if (closing_ || finished_) return;
  if (queue_.size() >= kMaxQueued) {
    closing_ = true;
    close_status_ =
        grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "the worker does not take its messages");
    queue_.resize(writing_ ? 1 : 0);
    MaybeFinish();
    return;
  }
  queue_.push_back(std::move(message));
  WriteNext();
}

template <typename In, typename Out>
void MessageSession<In, Out>::Close(grpc::Status status) {
  MutexLock lock(&mutex_);
  if (closing_ || finished_) return;
  closing_ = true;
  close_status_ = std::move(status);
  MaybeFinish();
}

template <typename In, typename Out>
void MessageSession<In, Out>::WriteNext() {
  if (writing_ || finished_ || queue_.empty()) return;
  writing_ = true;
  write_started_ = MonotonicNow();
  GrpcHandOver(this);
  this->StartWrite(&queue_.front());
}

template <typename In, typename Out>
bool MessageSession<In, Out>::BreakOffIfStuck(absl::Time now, absl::Duration patience) {
  {
    MutexLock lock(&mutex_);
    if (context_ == nullptr || !writing_ || finished_ || breaking_) return false;
    if (now - write_started_ < patience) return false;
    breaking_ = true;
  }
  // Finish has not been called, and is not while breaking_: the call, and with it the context, is alive.
  context_->TryCancel();
  MutexLock lock(&mutex_);
  breaking_ = false;
  MaybeFinish();
  return true;
}

template <typename In, typename Out>
void MessageSession<In, Out>::MaybeFinish() {
  if (!closing_ || finished_ || breaking_ || writing_ || !queue_.empty()) return;
  finished_ = true;
  GrpcHandOver(this);
  this->Finish(close_status_);
}

template <typename In, typename Out>
void MessageSession<In, Out>::Consumed() {
  MutexLock lock(&mutex_);
  --unconsumed_;
  if (!read_paused_ || finished_ || unconsumed_ >= kMaxUnconsumed / 2) return;
  read_paused_ = false;
  GrpcHandOver(this);
  this->StartRead(&incoming_);
}

template <typename In, typename Out>
void MessageSession<In, Out>::OnReadDone(bool ok) {
  const GrpcReaction reaction(this);
  if (!ok) {  // the worker has closed its side or is gone
    Close(grpc::Status::OK);
    return;
  }
  {
    MutexLock lock(&mutex_);
    ++unconsumed_;
  }
  callbacks_.on_message(self_, std::move(incoming_));
  MutexLock lock(&mutex_);
  incoming_.Clear();
  if (finished_) return;  // no operation may follow Finish
  if (unconsumed_ >= kMaxUnconsumed) {
    read_paused_ = true;
  } else {
    GrpcHandOver(this);
    this->StartRead(&incoming_);
  }
}

template <typename In, typename Out>
void MessageSession<In, Out>::OnWriteDone(bool ok) {
  const GrpcReaction reaction(this);
  MutexLock lock(&mutex_);
  writing_ = false;
  if (ok) {
    queue_.pop_front();
    WriteNext();
  } else {
    queue_.clear();
    closing_ = true;
  }
  MaybeFinish();
}

template <typename In, typename Out>
void MessageSession<In, Out>::OnCancel() {
  const GrpcReaction reaction(this);
  MutexLock lock(&mutex_);
  closing_ = true;
  // The message under way stays until OnWriteDone, the rest can reach nobody.
  queue_.resize(writing_ ? 1 : 0);
  MaybeFinish();
}

template <typename In, typename Out>
void MessageSession<In, Out>::OnDone() {
  GrpcTakeOver(this);
  const std::shared_ptr<MessageSession> self = std::move(self_);
  callbacks_.on_gone(self);
}

template class MessageSession<v1::WorkerMessage, v1::RouterMessage>;
template class MessageSession<v1::ServerMessage, v1::PoolMessage>;

}  // namespace bfio::router
