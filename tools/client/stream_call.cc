#include "tools/client/stream_call.h"

#include <grpc/grpc.h>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
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

std::variant<std::monostate, v1::GenerateResponse, grpc::Status> StreamReader::Take(absl::Duration patience) {
  v1::GenerateResponse message;
  bool read;
  {
    MutexLock lock(&mutex_);
    const auto ready = [](StreamReader* self) ABSL_NO_THREAD_SAFETY_ANALYSIS { return self->Ready(); };
    if (!mutex_.AwaitWithTimeout(absl::Condition(+ready, this), patience)) return std::monostate();
    if (waiting_.empty()) return *status_;
    message = std::move(waiting_.front());
    waiting_.pop_front();
    read = paused_ && waiting_.size() <= kReadAhead / 2;
    if (read) paused_ = false;
  }
  if (read) ReadNext();  // without the lock: ReadNext may run reactions
  return message;
}

void StreamReader::Abandon() {
  Cancel();
  {
    MutexLock lock(&mutex_);
    abandoned_ = true;
    waiting_.clear();
    if (!paused_) return;
    paused_ = false;
  }
  ReadNext();
}

StreamCall::Then StreamReader::OnMessage(v1::GenerateResponse& message, absl::Time) {
  MutexLock lock(&mutex_);
  if (abandoned_) return Then::kRead;
  waiting_.emplace_back().Swap(&message);
  paused_ = waiting_.size() == kReadAhead;
  return paused_ ? Then::kPause : Then::kRead;
}

void StreamReader::OnEnd(const grpc::Status& status, absl::Time) {
  MutexLock lock(&mutex_);
  status_ = status;
}

namespace {

// A slice that refers to `text` without copying it.
grpc_slice View(const std::string& text) {
  return grpc_slice_from_static_buffer(text.data(), text.size());
}

}  // namespace

Metadata BearerToken(const std::string& token) {
  if (token.empty()) return {};
  return {{"authorization", absl::StrCat("Bearer ", token)}};
}

absl::Status CheckMetadata(const Metadata& metadata) {
  for (const auto& [name, value] : metadata) {
    if (grpc_header_key_is_legal(View(name)) == 0) {
      return absl::InvalidArgumentError(absl::StrCat("invalid header name: ", absl::CHexEscape(name)));
    }
    // The message does not contain the value, which may be a secret.
    if (grpc_is_binary_header(View(name)) == 0 && grpc_header_nonbin_value_is_legal(View(value)) == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, ": the value has characters that a header value must not have"));
    }
  }
  return absl::OkStatus();
}

}  // namespace bfio::client
