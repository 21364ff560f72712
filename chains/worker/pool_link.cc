#include "chains/worker/pool_link.h"

#include <utility>

#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "common/net/connection_wait.h"
#include "common/net/status.h"
#include "grpcpp/grpcpp.h"

namespace bfio::worker {

PoolLink::PoolLink(std::shared_ptr<grpc::Channel> channel, Sinks sinks)
    : channel_(std::move(channel)), sinks_(std::move(sinks)), stub_(v1::ChainPool::NewStub(channel_)) {}

bool PoolLink::Open(absl::Duration timeout) {
  const absl::Time deadline = MonotonicNow() + timeout;
  for (ConnectionWait wait(channel_); !wait.Connected();) {
    if (MonotonicNow() >= deadline) return false;
    absl::SleepFor(wait.pause());
  }
  context_ = std::make_unique<grpc::ClientContext>();
  stream_ = stub_->Join(context_.get());
  reader_ = std::thread([this] {
    v1::PoolMessage message;
    while (stream_->Read(&message)) sinks_.on_message(std::move(message));
    sinks_.on_end(FromGrpcStatus(stream_->Finish()));
  });
  return true;
}

void PoolLink::Send(const v1::ServerMessage& message) {
  if (stream_ != nullptr) stream_->Write(message);
}

void PoolLink::Close() {
  if (stream_ == nullptr) return;
  context_->TryCancel();
  reader_.join();
  stream_.reset();
  context_.reset();
}

}  // namespace bfio::worker
