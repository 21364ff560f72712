#include "router/service/worker_session.h"

#include <utility>

#include "common/base/clock.h"
#include "common/net/tsan_edge.h"

namespace bfio::router {

std::shared_ptr<WorkerSession> WorkerSession::Create(std::string peer, Callbacks callbacks,
                                                     grpc::CallbackServerContext* context) {
  std::shared_ptr<WorkerSession> session(new WorkerSession(std::move(peer), std::move(callbacks), context));
  session->self_ = session;
  GrpcHandOver(session.get());
  session->StartRead(&session->incoming_);
  return session;
}

void WorkerSession::Send(v1::RouterMessage message) {
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

void WorkerSession::Close(grpc::Status status) {
  MutexLock lock(&mutex_);
  if (closing_ || finished_) return;
  closing_ = true;
  close_status_ = std::move(status);
  MaybeFinish();
}

void WorkerSession::WriteNext() {
  if (writing_ || finished_ || queue_.empty()) return;
  writing_ = true;
  write_started_ = MonotonicNow();
  GrpcHandOver(this);
  StartWrite(&queue_.front());
}

bool WorkerSession::BreakOffIfStuck(absl::Time now, absl::Duration patience) {
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

void WorkerSession::MaybeFinish() {
  if (!closing_ || finished_ || breaking_ || writing_ || !queue_.empty()) return;
  finished_ = true;
  GrpcHandOver(this);
  Finish(close_status_);
}

void WorkerSession::Consumed() {
  MutexLock lock(&mutex_);
  --unconsumed_;
  if (!read_paused_ || finished_ || unconsumed_ >= kMaxUnconsumed / 2) return;
  read_paused_ = false;
  GrpcHandOver(this);
  StartRead(&incoming_);
}

void WorkerSession::OnReadDone(bool ok) {
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
    StartRead(&incoming_);
  }
}

void WorkerSession::OnWriteDone(bool ok) {
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

void WorkerSession::OnCancel() {
  const GrpcReaction reaction(this);
  MutexLock lock(&mutex_);
  closing_ = true;
  // The message under way stays until OnWriteDone, the rest can reach nobody.
  queue_.resize(writing_ ? 1 : 0);
  MaybeFinish();
}

void WorkerSession::OnDone() {
  GrpcTakeOver(this);
  const std::shared_ptr<WorkerSession> self = std::move(self_);
  callbacks_.on_gone(self);
}

}  // namespace bfio::router
