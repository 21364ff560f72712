// A client's call that its owner destroys at any time: gRPC uses a reactor until OnDone. Threads: any.
#pragma once

#include <grpcpp/grpcpp.h>

#include "common/base/mutex.h"
#include "common/net/client_reactor.h"
#include "common/net/tsan_edge.h"

namespace bfio {

// `Reactor` is a reactor of grpc for clients.
template <typename Reactor>
class AwaitedCall : public ClientReactor<Reactor> {
 public:
  // gRPC has ended the call, and uses this object no longer.
  bool done() {
    MutexLock lock(&mutex_);
    return done_;
  }
  void OnDone(const grpc::Status&) final {
    GrpcTakeOver(this);
    MutexLock lock(&mutex_);
    done_ = true;
  }

 protected:
  // Cancels the call and waits until it is done. For the destructor of the subclass, which has the messages.
  void End() {
    context_.TryCancel();
    MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(&done_));
  }

  grpc::ClientContext context_;

 private:
  Mutex mutex_;
  bool done_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace bfio
