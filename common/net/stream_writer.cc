#include "common/net/stream_writer.h"

namespace bfio {

bool StreamWriter::BreakOffIfStuck(absl::Time now, absl::Duration patience) {
  {
    MutexLock lock(&mutex_);
    if (context_ == nullptr || !writing_ || breaking_ || Untaken(now) < patience) return false;
    breaking_ = true;
  }
  // While breaking_ is set, Finish is not called, so the call and its context stay alive.
  context_->TryCancel();
  MutexLock lock(&mutex_);
  breaking_ = false;
  Advance();
  return true;
}

void StreamWriter::OnWriteDone(bool ok) {
  const GrpcReaction reaction(this);
  MutexLock lock(&mutex_);
  writing_ = false;
  bytes_.Clear();  // may be large
  untaken_since_.reset();
  if (!ok) {
    broken_ = true;
    OnBroken();
  }
  Advance();
}

void StreamWriter::OnCancel() {
  const GrpcReaction reaction(this);
  MutexLock lock(&mutex_);
  broken_ = true;
  SetEnd(grpc::Status::CANCELLED);
  Advance();
}

void StreamWriter::OnDone() {
  GrpcTakeOver(this);
  // Moved out first: releasing the last reference destroys *this.
  const std::shared_ptr<StreamWriter> self = std::move(self_);
  OnGone();
}

void StreamWriter::Advance() {
  // The operations start under the lock: gRPC runs no callback inside them, and no other thread can act
  // between the decision to write and the write.
  if (writing_ || finished_ || breaking_) return;
  if (!broken_ && NextBytes(bytes_)) {
    writing_ = true;
    GrpcHandOver(this);
    StartWrite(&bytes_);
  } else if (ended_) {
    finished_ = true;
    GrpcHandOver(this);
    // Not combined with the last write: until that is taken, BreakOffIfStuck must be able to cancel the
    // call.
    Finish(status_);
  }
}

bool StreamWriter::SetEnd(grpc::Status status) {
  if (ended_) return false;
  ended_ = true;
  status_ = std::move(status);
  return true;
}

absl::Duration StreamWriter::Untaken(absl::Time now) {
  if (!writing_) return absl::ZeroDuration();
  if (!untaken_since_) untaken_since_ = now;
  return now - *untaken_since_;
}

}  // namespace bfio
