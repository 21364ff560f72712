#include "router/worker_link/worker_session.h"

#include <utility>

#include "common/base/clock.h"

namespace bfio::router {

template <typename In, typename Out>
std::shared_ptr<MessageSession<In, Out>> MessageSession<In, Out>::Create(
    std::string peer, Callbacks callbacks, grpc::CallbackServerContext* context) {
  std::shared_ptr<MessageSession> session(new MessageSession(std::move(peer), std::move(callbacks), context));
  session->Open(session);
  session->StartRead(&session->incoming_);
  return session;
}

template <typename In, typename Out>
void MessageSession<In, Out>::Send(Out message) {
  MutexLock lock(&mutex_);
  if (this->ended()) return;
  if (queue_.size() + (this->writing() ? 1 : 0) >= kMaxQueued) {
    queue_.clear();
    this->SetEnd({grpc::StatusCode::RESOURCE_EXHAUSTED, "the worker does not take its messages"});
  } else {
    queue_.push_back(std::move(message));
  }
  this->Advance();
}

template <typename In, typename Out>
void MessageSession<In, Out>::Close(grpc::Status status) {
  MutexLock lock(&mutex_);
  if (this->SetEnd(std::move(status))) this->Advance();
}

template <typename In, typename Out>
bool MessageSession<In, Out>::Next(Out& message) {
  if (queue_.empty()) {
    message = Out();  // a plan with prompts may be large
    return false;
  }
  message = std::move(queue_.front());
  queue_.pop_front();
  this->CountFrom(MonotonicNow());
  return true;
}

template <typename In, typename Out>
void MessageSession<In, Out>::Consumed() {
  MutexLock lock(&mutex_);
  --unconsumed_;
  if (!read_paused_ || this->finished() || unconsumed_ >= kMaxUnconsumed / 2) return;
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
  callbacks_.on_message(this->shared_from_this(), std::move(incoming_));
  MutexLock lock(&mutex_);
  incoming_.Clear();
  if (this->finished()) return;  // no operation may follow Finish
  if (unconsumed_ >= kMaxUnconsumed) {
    read_paused_ = true;
  } else {
    GrpcHandOver(this);
    this->StartRead(&incoming_);
  }
}

template class MessageSession<v1::WorkerMessage, v1::RouterMessage>;
template class MessageSession<v1::ServerMessage, v1::PoolMessage>;

}  // namespace bfio::router
