// A connection and the calls under way on it.
//
// Purpose: a channel must not be taken down by one of gRPC's own threads, so whoever owns it waits here until
// the last call has let go. Threads: any.
#ifndef BFIO_TOOLS_CLIENT_LINK_H_
#define BFIO_TOOLS_CLIENT_LINK_H_

#include <memory>
#include <utility>

#include "bfio/v1/inference.grpc.pb.h"
#include "common/base/mutex.h"

namespace bfio::client {

class Link {
 public:
  explicit Link(const std::shared_ptr<grpc::ChannelInterface>& channel)
      : stub_(v1::Inference::NewStub(channel)) {}
  // Waits for the calls under way; they have deadlines.
  ~Link() {
    MutexLock lock(&mutex_);
    const auto idle = [](int* calls) { return *calls == 0; };
    mutex_.Await(absl::Condition(+idle, &calls_));
  }

  v1::Inference::Stub& stub() { return *stub_; }

  // Around every call that gRPC ends on a thread of its own; CallEnded is the last thing done there.
  void CallBegins() {
    MutexLock lock(&mutex_);
    ++calls_;
  }
  void CallEnded() {
    MutexLock lock(&mutex_);
    --calls_;
  }

 private:
  const std::unique_ptr<v1::Inference::Stub> stub_;
  Mutex mutex_;
  int calls_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace bfio::client

#endif  // BFIO_TOOLS_CLIENT_LINK_H_
