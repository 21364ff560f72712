#include "tools/client/attempt.h"

#include "common/net/tsan_edge.h"

namespace bfio::client {

std::shared_ptr<Attempt> Attempt::Start(Link& link, const v1::GenerateRequest& request, absl::Time deadline,
                                        const Metadata& metadata) {
  const std::shared_ptr<Attempt> attempt(new Attempt(link, request));
  link.CallBegins();
  attempt->context_.set_deadline(absl::ToChronoTime(deadline));
  for (const auto& [name, value] : metadata) attempt->context_.AddMetadata(name, value);
  {
    MutexLock lock(&attempt->mutex_);
    attempt->self_ = attempt;
  }
  link.stub().async()->Generate(&attempt->context_, &attempt->request_, attempt.get());
  attempt->AddHold();
  GrpcHandOver(attempt.get());
  attempt->StartRead(&attempt->response_);
  attempt->StartCall();
  return attempt;
}

std::variant<std::monostate, v1::GenerateResponse, grpc::Status> Attempt::Take(absl::Duration patience) {
  v1::GenerateResponse message;
  {
    MutexLock lock(&mutex_);
    const auto ready = [](Attempt* self) ABSL_NO_THREAD_SAFETY_ANALYSIS { return self->Ready(); };
    if (!mutex_.AwaitWithTimeout(absl::Condition(+ready, this), patience)) return std::monostate();
    if (!full_) return *status_;
    full_ = false;
    message.Swap(&response_);
  }
  // Not under the lock: gRPC may run reactions in here.
  GrpcHandOver(this);
  StartRead(&response_);
  return message;
}

void Attempt::Abandon() {
  context_.TryCancel();
  bool release = false;
  {
    MutexLock lock(&mutex_);
    if (abandoned_) return;
    abandoned_ = true;
    release = full_;  // no read is under way
  }
  if (release) RemoveHold();
}

void Attempt::OnReadDone(bool ok) {
  const GrpcReaction reaction(this);
  {
    MutexLock lock(&mutex_);
    if (ok && !abandoned_) {
      full_ = true;
      return;
    }
  }
  RemoveHold();  // OnDone follows
}

void Attempt::OnDone(const grpc::Status& status) {
  GrpcTakeOver(this);
  Link& link = link_;
  std::shared_ptr<Attempt> self;
  {
    MutexLock lock(&mutex_);
    status_ = status;
    self = std::move(self_);
  }
  self.reset();  // *this may be gone
  link.CallEnded();
}

}  // namespace bfio::client
