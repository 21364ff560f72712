// The definitions of MessageSession: for the files that instantiate it.
#ifndef BFIO_ROUTER_WORKER_LINK_WORKER_SESSION_IMPL_H_
#define BFIO_ROUTER_WORKER_LINK_WORKER_SESSION_IMPL_H_

#include <utility>

#include "common/base/clock.h"
#include "router/worker_link/worker_session.h"

namespace bfio::router {

template <typename In, typename Out>
std::shared_ptr<MessageSession<In, Out>> MessageSession<In, Out>::Create(
    std::string peer, Callbacks callbacks, SessionBounds* bounds, grpc::CallbackServerContext* context) {
  std::shared_ptr<MessageSession> session(
      new MessageSession(std::move(peer), std::move(callbacks), bounds, context));
  session->Open(session);
  bounds->first_messages.Begin(session);
  return session;
}

template <typename In, typename Out>
bool MessageSession<In, Out>::Receive() {
  MutexLock lock(&mutex_);
  if (this->ended()) return false;
  GrpcHandOver(this);
  this->StartRead(&incoming_);
  return true;
}

template <typename In, typename Out>
void MessageSession<In, Out>::OnTooLate() {
  Close({grpc::StatusCode::DEADLINE_EXCEEDED, "no hello came in time"});
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
bool MessageSession<In, Out>::MayRead() const {
  // A session with nothing that waits may always read: nothing else would wake it.
  if (unconsumed_.empty()) return true;
  return unconsumed_.size() < kMaxUnconsumed && unconsumed_bytes_ < kMaxUnconsumedBytes &&
         bounds_->unconsumed_bytes.load(std::memory_order_relaxed) < bounds_->max_unconsumed_bytes;
}

template <typename In, typename Out>
void MessageSession<In, Out>::Consumed() {
  MutexLock lock(&mutex_);
  // An event that is no message, its end, is consumed too.
  if (unconsumed_.empty()) return;
  bounds_->unconsumed_bytes.fetch_sub(unconsumed_.front(), std::memory_order_relaxed);
  unconsumed_bytes_ -= unconsumed_.front();
  unconsumed_.pop_front();
  if (!read_paused_ || this->finished()) return;
  if (!MayRead() || unconsumed_.size() >= kMaxUnconsumed / 2) return;
  read_paused_ = false;
  GrpcHandOver(this);
  this->StartRead(&incoming_);
}

template <typename In, typename Out>
void MessageSession<In, Out>::OnReadDone(bool ok) {
  const GrpcReaction reaction(this);
  if (!std::exchange(first_came_, true)) bounds_->first_messages.End(*this);
  if (!ok) {  // the worker has closed its side or is gone
    Close(grpc::Status::OK);
    return;
  }
  const auto bytes = static_cast<int64_t>(incoming_.ByteSizeLong());
  {
    MutexLock lock(&mutex_);
    unconsumed_.push_back(bytes);
    unconsumed_bytes_ += bytes;
    bounds_->unconsumed_bytes.fetch_add(bytes, std::memory_order_relaxed);
  }
  callbacks_.on_message(this->shared_from_this(), std::move(incoming_));
  MutexLock lock(&mutex_);
  // Not Clear, which keeps what a large message needed.
  incoming_ = In();
  if (this->finished()) return;  // no operation may follow Finish
  if (MayRead()) {
    GrpcHandOver(this);
    this->StartRead(&incoming_);
  } else {
    read_paused_ = true;
  }
}

}  // namespace bfio::router

#endif  // BFIO_ROUTER_WORKER_LINK_WORKER_SESSION_IMPL_H_
