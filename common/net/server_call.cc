#include "common/net/server_call.h"

#include "common/net/bounded_parse.h"
#include "common/net/status.h"

namespace bfio {

void ServerCallBase::Begin(const absl::StatusOr<Peer>& allowed, FirstMessages* messages) {
  if (!allowed.ok()) return Close(ToGrpcStatus(allowed.status()));
  messages_ = messages;
  peer_ = *allowed;
  messages->Begin(shared_from_this(), peer_);
}

void ServerCallBase::Close(grpc::Status status) {
  MutexLock lock(&mutex_);
  if (SetEnd(std::move(status))) Advance();
}

bool ServerCallBase::HasEnded() {
  MutexLock lock(&mutex_);
  return ended();
}

bool ServerCallBase::Receive() {
  MutexLock lock(&mutex_);
  if (ended()) return false;
  receiving_ = true;
  Read();
  return true;
}

void ServerCallBase::OnTooLate() {
  MutexLock lock(&mutex_);
  const absl::Status late = receiving_
                                ? absl::DeadlineExceededError("the first message did not arrive in time")
                                : absl::UnavailableError("too many requests are being received");
  if (SetEnd(ToGrpcStatus(late))) Advance();
}

void ServerCallBase::OnReadDone(bool ok) {
  const GrpcReaction reaction(this);
  if (!std::exchange(first_came_, true)) messages_->End(*this);
  if (ok && messages_->counts_messages()) messages_->Arrived(peer_, static_cast<int64_t>(received_.Length()));
  if (!ok || !ParseBounded(received_, Incoming())) return OnNoMessage();
  OnIncoming();
}

void ServerCallBase::Read() {
  GrpcHandOver(this);
  StartRead(&received_);
}

bool ServerCallBase::NextBytes(grpc::ByteBuffer& bytes) {
  const google::protobuf::Message* const message = NextMessage();
  if (message == nullptr) return false;
  bytes = Serialized(*message);
  return true;
}

}  // namespace bfio
