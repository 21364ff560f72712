// The server's side of a call whose first message is received only once the caller may make the call.
//
// Purpose: one shape for all calls of a CallService. Begin refuses the call, or has its first message
// received when FirstMessages says so; a message that does not come, or not in time, ends the call. Each
// message goes to the subclass, and nothing of it stays here. Ownership, writes and the end of the call:
// StreamWriter. Threads: gRPC's; Close, HasEnded and what the subclass adds from any.
#ifndef BFIO_COMMON_NET_SERVER_CALL_H_
#define BFIO_COMMON_NET_SERVER_CALL_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "common/net/first_messages.h"
#include "common/net/status.h"
#include "common/net/stream_writer.h"

namespace bfio {

// `Derived` is the subclass, which is created as a shared_ptr and opened (StreamWriter::Open).
template <typename Derived, typename In, typename Out>
class ServerCall : public StreamWriter<grpc::ServerBidiReactor<In, Out>, Out>,
                   public FirstMessages::Call,
                   public std::enable_shared_from_this<Derived> {
 public:
  // Ends a call that is not `allowed`, and receives nothing of it. Otherwise has the first message received;
  // `messages` outlives the call. Once, or never: a call without Begin receives nothing.
  void Begin(const absl::Status& allowed, FirstMessages* messages) {
    if (!allowed.ok()) return Close(ToGrpcStatus(allowed));
    messages_ = messages;
    messages->Begin(this->shared_from_this());
  }

  // Ends the call after what is queued. Does nothing if it has ended.
  void Close(grpc::Status status) {
    MutexLock lock(&mutex_);
    if (this->SetEnd(std::move(status))) this->Advance();
  }
  bool HasEnded() {
    MutexLock lock(&mutex_);
    return this->ended();
  }

  bool Receive() final {
    MutexLock lock(&mutex_);
    if (this->ended()) return false;
    receiving_ = true;
    Read();
    return true;
  }
  void OnTooLate() final {
    MutexLock lock(&mutex_);
    const absl::Status late = receiving_
                                  ? absl::DeadlineExceededError("the first message did not come in time")
                                  : absl::UnavailableError("too many requests are being received");
    if (this->SetEnd(ToGrpcStatus(late))) this->Advance();
  }
  void OnReadDone(bool ok) final {
    const GrpcReaction reaction(this);
    if (!std::exchange(first_came_, true)) messages_->End(*this);
    if (!ok) return OnNoMessage();
    OnMessage(std::exchange(incoming_, In()));
  }

 protected:
  using Writer = StreamWriter<grpc::ServerBidiReactor<In, Out>, Out>;
  using Writer::mutex_;

  explicit ServerCall(grpc::CallbackServerContext* context) : Writer(context) {}
  ~ServerCall() override = default;

  // The first message, and each that Read was called for. No lock is held.
  virtual void OnMessage(In message) = 0;
  // None came: it cannot be read, or the peer has closed its side.
  virtual void OnNoMessage() { Close({grpc::StatusCode::INVALID_ARGUMENT, "no request that can be read"}); }

  // Receives a further message. REQUIRES: the last one has come, and the call has not finished.
  void Read() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    GrpcHandOver(this);
    this->StartRead(&incoming_);
  }

 private:
  FirstMessages* messages_ = nullptr;
  // Of gRPC's reactions.
  bool first_came_ = false;
  In incoming_;  // belongs to gRPC while a read is under way
  bool receiving_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace bfio

#endif  // BFIO_COMMON_NET_SERVER_CALL_H_
