// Definitions of MessageSession, for the files that instantiate it.
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
  session->Begin(absl::OkStatus(), &bounds->first_messages);
  return session;
}

template <typename In, typename Out>
void MessageSession<In, Out>::Send(Out message) {
  const auto bytes = static_cast<int64_t>(message.ByteSizeLong());
  MutexLock lock(&mutex_);
  if (this->ended()) return;
  const size_t waiting = queue_.size() + (this->writing() ? 1 : 0);
  if (waiting >= kMaxQueued || !this->MayQueue(queued_bytes_, bytes, kMaxQueuedBytes)) {
    queue_.clear();
    CountQueued(-queued_bytes_);
    this->SetEnd({grpc::StatusCode::RESOURCE_EXHAUSTED, "the worker does not read its messages"});
  } else {
    queue_.push_back({std::move(message), bytes});
    CountQueued(bytes);
  }
  this->Advance();
}

template <typename In, typename Out>
void MessageSession<In, Out>::CountQueued(int64_t bytes) {
  queued_bytes_ += bytes;
  bounds_->queued_bytes.fetch_add(bytes, std::memory_order_relaxed);
}

template <typename In, typename Out>
bool MessageSession<In, Out>::Next(Out& message) {
  if (queue_.empty()) {
    message = Out();  // frees the memory of the last message: a plan with prompts may be large
    return false;
  }
  message = std::move(queue_.front().message);
  CountQueued(-queue_.front().bytes);
  queue_.pop_front();
  this->CountFrom(MonotonicNow());
  return true;
}

template <typename In, typename Out>
bool MessageSession<In, Out>::MayRead() const {
  // A session without unconsumed messages may always read: nothing else would resume it.
  if (unconsumed_.empty()) return true;
  return unconsumed_.size() < kMaxUnconsumed && unconsumed_bytes_ < kMaxUnconsumedBytes &&
         bounds_->unconsumed_bytes.load(std::memory_order_relaxed) < bounds_->max_unconsumed_bytes;
}

template <typename In, typename Out>
void MessageSession<In, Out>::Consumed() {
  MutexLock lock(&mutex_);
  // The end of the session is also an event, but not a message.
  if (unconsumed_.empty()) return;
  bounds_->unconsumed_bytes.fetch_sub(unconsumed_.front(), std::memory_order_relaxed);
  unconsumed_bytes_ -= unconsumed_.front();
  unconsumed_.pop_front();
  if (!read_paused_ || this->finished()) return;
  if (!MayRead() || unconsumed_.size() >= kMaxUnconsumed / 2) return;
  read_paused_ = false;
  this->Read();
}

template <typename In, typename Out>
void MessageSession<In, Out>::OnMessage(In message) {
  const auto bytes = static_cast<int64_t>(message.ByteSizeLong());
  {
    MutexLock lock(&mutex_);
    unconsumed_.push_back(bytes);
    unconsumed_bytes_ += bytes;
    bounds_->unconsumed_bytes.fetch_add(bytes, std::memory_order_relaxed);
  }
  callbacks_.on_message(this->shared_from_this(), std::move(message));
  MutexLock lock(&mutex_);
  if (this->finished()) return;  // no operation may follow Finish
  if (MayRead()) {
    this->Read();
  } else {
    read_paused_ = true;
  }
}

}  // namespace bfio::router

#endif  // BFIO_ROUTER_WORKER_LINK_WORKER_SESSION_IMPL_H_
