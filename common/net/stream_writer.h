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

// What gRPC calls. It passes on bytes: gRPC's calls are templates over their messages, and their code is
// compiled once this way.
using CallReactor = grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>;

class StreamWriter : public CallReactor {
 public:
  // Cancels the call when the peer has not taken the current write for `patience`; returns true if it did.
  // `now` is a time of MonotonicNow. REQUIRES: the caller shares ownership of the stream and holds no lock,
  // because gRPC may run callbacks of other calls inside TryCancel.
  bool BreakOffIfStuck(absl::Time now, absl::Duration patience) ABSL_LOCKS_EXCLUDED(mutex_);

  void OnWriteDone(bool ok) final;

  // Ends the stream. Queued messages are not written.
  void OnCancel() override;

  void OnDone() final;

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

  // The source of messages. Sets `bytes` to the next message and returns true, or returns false when there is
  // nothing to write now. Not called during a write or after one failed.
  virtual bool NextBytes(grpc::ByteBuffer& bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) = 0;

  // A write has failed, so nothing more reaches the peer. An override that does not end the stream leaves
  // that to OnCancel.
  virtual void OnBroken() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { SetEnd(grpc::Status::CANCELLED); }

  // The call is over; the last callback.
  virtual void OnGone() {}

  // Starts the next write, or finishes the call if it has ended and nothing is left to write. Does nothing
  // during a write. Call it after every change to the source and after SetEnd.
  void Advance() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Sets the status that the call finishes with once Next returns false. False, without any change, if the
  // stream has ended already.
  bool SetEnd(grpc::Status status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Whether `more` may be added to the `waiting` amount, bounded by `bound`, in any unit. A single message
  // may always be queued, however large.
  static bool MayQueue(int64_t waiting, int64_t more, int64_t bound) {
    return waiting == 0 || waiting + more <= bound;
  }

  // How long the peer has not taken the current write; 0 without one. Counts from CountFrom, or otherwise
  // from the first call for this write, so that a stream without such calls reads no clock.
  absl::Duration Untaken(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
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
  grpc::ByteBuffer bytes_;  // owned by gRPC while writing_
};

}  // namespace bfio
