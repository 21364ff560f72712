#include "tools/client/stream_call.h"

#include <utility>

#include "common/base/clock.h"
#include "common/net/tsan_edge.h"

namespace bfio::client {

StreamCall::StreamCall(v1::GenerateRequest request, absl::Time deadline, const Metadata& metadata)
    : request_(std::move(request)), context_(std::make_shared<grpc::ClientContext>()) {
  context_->set_deadline(absl::ToChronoTime(deadline));
  for (const auto& [name, value] : metadata) context_->AddMetadata(name, value);
}

void StreamCall::Start(v1::Inference::Stub& stub) {
  self_ = shared_from_this();
  grpc::ClientContext* context = nullptr;
  {
    MutexLock lock(&mutex_);
    context = context_.get();
  }
  stub.async()->Generate(context, &request_, this);
  // The hold allows ReadNext to be called outside of reactions: the call cannot end before a read has failed.
  AddHold();
  GrpcHandOver(this);
  StartRead(&message_);
  StartCall();
}

void StreamCall::Cancel() {
  std::shared_ptr<grpc::ClientContext> context;
  {
    MutexLock lock(&mutex_);
    context = context_;
  }
  if (context != nullptr) context->TryCancel();
}

void StreamCall::ReadNext() {
  GrpcHandOver(this);
  StartRead(&message_);
}

void StreamCall::OnReadDone(bool ok) {
  const GrpcReaction reaction(this);
  if (!ok) {
    RemoveHold();  // OnDone follows
  } else if (OnMessage(message_, MonotonicNow()) == Then::kRead) {
    ReadNext();
  }
}

void StreamCall::OnDone(const grpc::Status& status) {
  GrpcTakeOver(this);
  const absl::Time ended = MonotonicNow();
  {
    MutexLock lock(&mutex_);
    context_.reset();
  }
  const std::shared_ptr<StreamCall> self = std::move(self_);
  OnEnd(status, ended);
}

}  // namespace bfio::client
