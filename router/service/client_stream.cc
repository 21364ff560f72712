#include "router/service/client_stream.h"

#include <utility>

#include "common/net/tsan_edge.h"

namespace bfio::router {

std::shared_ptr<ClientStream> ClientStream::Create(std::string request_id, std::function<void()> on_cancel) {
  std::shared_ptr<ClientStream> stream(new ClientStream(std::move(request_id), std::move(on_cancel)));
  stream->self_ = stream;
  GrpcHandOver(stream.get());
  return stream;
}

bool ClientStream::MarkDirty() {
  if (dirty_ || writing_) return false;  // whoever is at it will see the change
  dirty_ = true;
  return true;
}

bool ClientStream::Deliver(uint32_t index, uint32_t token) {
  MutexLock lock(&mutex_);
  if (ended_) return false;
  if (pending_.empty()) pending_first_index_ = index;
  pending_.push_back(token);
  return MarkDirty();
}

bool ClientStream::End(grpc::Status status, std::optional<v1::Finish> finish) {
  MutexLock lock(&mutex_);
  if (ended_) return false;
  ended_ = true;
  status_ = std::move(status);
  finish_ = std::move(finish);
  return MarkDirty();
}

void ClientStream::Flush() {
  // The operations are started under the lock: no callback runs inside them, and a second thread cannot slip
  // between the decision to write and the write.
  MutexLock lock(&mutex_);
  dirty_ = false;
  if (writing_ || finished_) return;
  const bool have_tokens =
      !pending_.empty() && !broken_ && status_.error_code() != grpc::StatusCode::CANCELLED;
  if (!have_tokens && !ended_) return;
  if (!have_tokens && (broken_ || !status_.ok())) {
    finished_ = true;
    GrpcHandOver(this);
    Finish(status_);
    return;
  }
  response_.Clear();
  response_.set_request_id(request_id_);
  if (have_tokens) {
    response_.set_first_index(pending_first_index_);
    response_.mutable_token_ids()->Add(pending_.begin(), pending_.end());
    pending_.clear();
  }
  writing_ = true;
  if (ended_ && status_.ok()) {
    if (finish_) {
      if (!have_tokens) response_.set_first_index(finish_->usage().completion_tokens());
      *response_.mutable_finish() = *std::move(finish_);
    }
    finished_ = true;
    GrpcHandOver(this);
    StartWriteAndFinish(&response_, grpc::WriteOptions(), grpc::Status::OK);
  } else {
    GrpcHandOver(this);
    StartWrite(&response_);
  }
}

void ClientStream::OnWriteDone(bool ok) {
  const GrpcReaction reaction(this);
  bool again = false;
  {
    MutexLock lock(&mutex_);
    writing_ = false;
    if (!ok) {  // the call is dead; OnCancel tells the router, which ends the stream
      broken_ = true;
      pending_.clear();
    }
    again = !finished_ && (ended_ || !pending_.empty());
  }
  if (again) Flush();
}

void ClientStream::OnCancel() {
  const GrpcReaction reaction(this);
  on_cancel_();
}

void ClientStream::OnDone() {
  GrpcTakeOver(this);
  // Moved out first: releasing the last reference destroys *this.
  const std::shared_ptr<ClientStream> self = std::move(self_);
}

}  // namespace bfio::router
