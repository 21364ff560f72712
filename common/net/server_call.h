// The server side of a call whose first message is received only after the caller is authorised. The common
// base of all calls of a CallService. Begin refuses the call, or has its first message received when
// FirstMessages permits. A message that is invalid or late ends the call. Each message is passed to the
// subclass and not kept here. Ownership, writes and the end of the call: StreamWriter. Threads: gRPC's; any
// for Close, HasEnded and what the subclass adds.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/fair_share.h"
#include "common/net/any_message.h"
#include "common/net/bounded_parse.h"
#include "common/net/first_messages.h"
#include "common/net/status.h"
#include "common/net/stream_writer.h"

namespace bfio {

// What gRPC calls. It passes on bytes, which ServerCall parses.
template <typename Out>
using CallReactor = grpc::ServerBidiReactor<grpc::ByteBuffer, Out>;

// `Derived` is the subclass, created as a shared_ptr and opened (StreamWriter::Open).
template <typename Derived, typename In, typename Out>
class ServerCall : public StreamWriter<CallReactor<Out>, Out>,
                   public FirstMessages::Call,
                   public std::enable_shared_from_this<Derived> {
 public:
  // If `allowed` is an error, ends the call without receiving anything; otherwise has the peer's first
  // message received. `messages` must outlive the call. Call it at most once; without it nothing is received.
  void Begin(const absl::StatusOr<Peer>& allowed, FirstMessages* messages) {
    if (!allowed.ok()) return Close(ToGrpcStatus(allowed.status()));
    messages_ = messages;
    peer_ = *allowed;
    messages->Begin(this->shared_from_this(), peer_);
  }
  // Whose share of the port's resources the call uses; set by Begin, or for a call without it.
  const Peer& peer() const { return peer_; }
  void set_peer(Peer peer) { peer_ = std::move(peer); }

  // Ends the call after the queued messages. Does nothing if it has ended.
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
                                  ? absl::DeadlineExceededError("the first message did not arrive in time")
                                  : absl::UnavailableError("too many requests are being received");
    if (this->SetEnd(ToGrpcStatus(late))) this->Advance();
  }
  void OnReadDone(bool ok) final {
    const GrpcReaction reaction(this);
    if (!std::exchange(first_came_, true)) messages_->End(*this);
    if (ok && messages_->counts_messages()) messages_->Arrived(peer_, static_cast<int64_t>(bytes_.Length()));
    if (!ok || !ParseBounded(bytes_, MessageIn(incoming_))) return OnNoMessage();
    OnMessage(std::exchange(incoming_, In()));
  }

 protected:
  using Writer = StreamWriter<CallReactor<Out>, Out>;
  using Writer::mutex_;

  // `incoming`: the first message is parsed into it.
  explicit ServerCall(grpc::CallbackServerContext* context, In incoming = In())
      : Writer(context), incoming_(std::move(incoming)) {}
  ~ServerCall() override = default;

  // Called with the first message, and with each that Read requested. No lock is held.
  virtual void OnMessage(In message) = 0;
  // No message came: it cannot be parsed, or the peer has closed its side.
  virtual void OnNoMessage() { Close({grpc::StatusCode::INVALID_ARGUMENT, "cannot parse the request"}); }

  // Requests a further message. REQUIRES: the last one has arrived, and the call has not finished.
  void Read() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    GrpcHandOver(this);
    this->StartRead(&bytes_);
  }

 private:
  FirstMessages* messages_ = nullptr;
  Peer peer_;
  // Whether gRPC has reported the first message.
  bool first_came_ = false;
  grpc::ByteBuffer bytes_;  // owned by gRPC during a read
  In incoming_;
  bool receiving_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace bfio
