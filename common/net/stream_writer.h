// The write side of a server stream: a base class for reactors that write. GRPC allows one write at a time
// and one Finish, after which no operation may follow. StreamWriter keeps these rules. It pulls each message
// from the subclass when the stream can take it, so the subclass decides what is queued, within which bound,
// and what is coalesced or dropped. It finishes the call after the last message, stops at a failed write, and
// cancels a call whose peer does not read. Ownership: the stream owns itself from Open until OnDone; others
// share it. Threads: mutex_ guards everything, including the subclass's source. gRPC's callbacks run on its
// threads.
#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "common/net/tsan_edge.h"

namespace bfio {

// `Reactor` is a grpc::ServerWriteReactor or grpc::ServerBidiReactor that writes `Message`.
template <typename Reactor, typename Message>
class StreamWriter : public Reactor {
 public:
  // Cancels the call when the peer has not taken the current write for `patience`; returns true if it did.
  // `now` is a time of MonotonicNow. REQUIRES: the caller shares ownership of the stream and holds no lock,
  // because gRPC may run callbacks of other calls inside TryCancel.
  bool BreakOffIfStuck(absl::Time now, absl::Duration patience) ABSL_LOCKS_EXCLUDED(mutex_) {
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

  void OnWriteDone(bool ok) final {
    const GrpcReaction reaction(this);
    MutexLock lock(&mutex_);
    writing_ = false;
    untaken_since_.reset();
    if (!ok) {
      broken_ = true;
      OnBroken();
    }
    Advance();
  }

  // Ends the stream. Queued messages are not written.
  void OnCancel() override {
    const GrpcReaction reaction(this);
    MutexLock lock(&mutex_);
    broken_ = true;
    SetEnd(grpc::Status::CANCELLED);
    Advance();
  }

  void OnDone() final {
    GrpcTakeOver(this);
    // Moved out first: releasing the last reference destroys *this.
    const std::shared_ptr<StreamWriter> self = std::move(self_);
    OnGone();
  }

 protected:
  // `context` is the call's. A call without a context cannot be cancelled.
  explicit StreamWriter(grpc::CallbackServerContext* context) : context_(context) {}
  ~StreamWriter() override = default;

  // Makes the stream own itself until OnDone. REQUIRES: called once, before any operation and before gRPC
  // gets the reactor.
  void Open(std::shared_ptr<StreamWriter> self) {
    self_ = std::move(self);
    GrpcHandOver(this);
  }

  // The source of messages. Sets `message`, which contains the previous one, to the next message and returns
  // true, or returns false when there is nothing to write now. Not called during a write or after one failed.
  virtual bool Next(Message& message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) = 0;

  // A write has failed, so nothing more reaches the peer. An override that does not end the stream leaves
  // that to OnCancel.
  virtual void OnBroken() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { SetEnd(grpc::Status::CANCELLED); }

  // The call is over; the last callback.
  virtual void OnGone() {}

  // Starts the next write, or finishes the call if it has ended and nothing is left to write. Does nothing
  // during a write. Call it after every change to the source and after SetEnd.
  void Advance() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    // The operations start under the lock: gRPC runs no callback inside them, and no other thread can act
    // between the decision to write and the write.
    if (writing_ || finished_ || breaking_) return;
    if (!broken_ && Next(message_)) {
      writing_ = true;
      GrpcHandOver(this);
      this->StartWrite(&message_);
    } else if (ended_) {
      finished_ = true;
      GrpcHandOver(this);
      // Not combined with the last write: until that is taken, BreakOffIfStuck must be able to cancel the
      // call.
      this->Finish(status_);
    }
  }

  // Sets the status that the call finishes with once Next returns false. False, without any change, if the
  // stream has ended already.
  bool SetEnd(grpc::Status status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (ended_) return false;
    ended_ = true;
    status_ = std::move(status);
    return true;
  }

  // Whether `more` may be added to the `waiting` amount, bounded by `bound`, in any unit. A single message
  // may always be queued, however large.
  static bool MayQueue(int64_t waiting, int64_t more, int64_t bound) {
    return waiting == 0 || waiting + more <= bound;
  }

  // How long the peer has not taken the current write; 0 without one. Counts from CountFrom, or otherwise
  // from the first call for this write, so that a stream without such calls reads no clock.
  absl::Duration Untaken(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!writing_) return absl::ZeroDuration();
    if (!untaken_since_) untaken_since_ = now;
    return now - *untaken_since_;
  }
  // For Next: sets when the write of the message begins.
  void CountFrom(absl::Time start) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { untaken_since_ = start; }

  // Whether a write is in progress; its message then belongs to gRPC.
  bool writing() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return writing_; }
  // Whether a write has failed or the call is cancelled: nothing more reaches the peer.
  bool broken() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return broken_; }
  // Whether the final status is set.
  bool ended() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return ended_; }
  // Whether Finish has been called: no operation may follow.
  bool finished() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return finished_; }

  // Valid at least until Finish, and in OnCancel.
  grpc::CallbackServerContext* context() const { return context_; }

  Mutex mutex_;

 private:
  grpc::CallbackServerContext* const context_;
  std::shared_ptr<StreamWriter> self_;  // reset in OnDone

  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool broken_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  // Set while BreakOffIfStuck uses the context: Finish must wait.
  bool breaking_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<absl::Time> untaken_since_ ABSL_GUARDED_BY(mutex_);
  grpc::Status status_ ABSL_GUARDED_BY(mutex_);
  Message message_;  // owned by gRPC while writing_
};

}  // namespace bfio
