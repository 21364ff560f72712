// The server side of a call whose first message is received only after the caller is authorised. The common
// base of all calls of a CallService. Begin refuses the call, or has its first message received when
// FirstMessages permits. A message that is invalid or late ends the call. Each message is passed to the
// subclass and not kept here. Ownership, writes and the end of the call: StreamWriter. Threads: gRPC's; any
// for Close, HasEnded and what the subclass adds.
#pragma once

#include <google/protobuf/message.h>
#include <grpcpp/grpcpp.h>

#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "common/base/fair_share.h"
#include "common/net/any_message.h"
#include "common/net/first_messages.h"
#include "common/net/stream_writer.h"

namespace bfio {

// What does not depend on the messages' types.
class ServerCallBase : public StreamWriter,
                       public FirstMessages::Call,
                       public std::enable_shared_from_this<ServerCallBase> {
 public:
  // If `allowed` is an error, ends the call without receiving anything; otherwise has the peer's first
  // message received. `messages` must outlive the call. Call it at most once; without it nothing is received.
  void Begin(const absl::StatusOr<Peer>& allowed, FirstMessages* messages);
  // Whose share of the port's resources the call uses; set by Begin, or for a call without it.
  const Peer& peer() const { return peer_; }
  void set_peer(Peer peer) { peer_ = std::move(peer); }

  // Ends the call after the queued messages. Does nothing if it has ended.
  void Close(grpc::Status status);
  bool HasEnded();

  bool Receive() final;
  void OnTooLate() final;
  void OnReadDone(bool ok) final;

 protected:
  using StreamWriter::StreamWriter;
  ~ServerCallBase() override = default;

  // No message came: it cannot be parsed, or the peer has closed its side.
  virtual void OnNoMessage() { Close({grpc::StatusCode::INVALID_ARGUMENT, "cannot parse the request"}); }

  // Requests a further message. REQUIRES: the last one has arrived, and the call has not finished.
  void Read() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

 private:
  // The message to parse into; it has been parsed.
  virtual google::protobuf::Message& Incoming() = 0;
  virtual void OnIncoming() = 0;
  // The next message to write; null: there is none now.
  virtual const google::protobuf::Message* NextMessage() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) = 0;
  bool NextBytes(grpc::ByteBuffer& bytes) final ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  FirstMessages* messages_ = nullptr;
  Peer peer_;
  // Whether gRPC has reported the first message.
  bool first_came_ = false;
  grpc::ByteBuffer received_;  // owned by gRPC during a read
  bool receiving_ ABSL_GUARDED_BY(mutex_) = false;
};

// `Derived` is the subclass, created as a shared_ptr and opened (StreamWriter::Open).
template <typename Derived, typename In, typename Out>
class ServerCall : public ServerCallBase {
 public:
  std::shared_ptr<Derived> shared_from_this() {
    return std::static_pointer_cast<Derived>(ServerCallBase::shared_from_this());
  }

 protected:
  // `incoming`: the first message is parsed into it.
  explicit ServerCall(grpc::CallbackServerContext* context, In incoming = In())
      : ServerCallBase(context), incoming_(std::move(incoming)) {}
  ~ServerCall() override = default;

  // Called with the first message, and with each that Read requested. No lock is held.
  virtual void OnMessage(In message) = 0;
  // Sets `message`, which contains the previous one, to the next message to write and returns true, or
  // returns false when there is nothing to write now.
  virtual bool Next(Out& message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) = 0;

 private:
  google::protobuf::Message& Incoming() final { return MessageIn(incoming_); }
  void OnIncoming() final { OnMessage(std::exchange(incoming_, In())); }
  const google::protobuf::Message* NextMessage() final ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return Next(message_) ? &MessageIn(message_) : nullptr;
  }

  In incoming_;
  Out message_;
};

}  // namespace bfio
