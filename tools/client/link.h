// A connection and the calls under way on it.
//
// Purpose: a thread of gRPC must not destroy a channel, so the destructor waits here until the last call has
// released it. Threads: any.
#pragma once

#include <memory>

#include "bfio/v1/inference.grpc.pb.h"
#include "common/base/mutex.h"

namespace bfio::client {

class Link {
 public:
  // A call holds a Use from before its start until gRPC has released the call.
  class Use {
   public:
    explicit Use(Link& link) : link_(link) {
      MutexLock lock(&link_.mutex_);
      ++link_.uses_;
    }
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;
    ~Use() {
      MutexLock lock(&link_.mutex_);
      --link_.uses_;
    }

   private:
    Link& link_;
  };

  explicit Link(const std::shared_ptr<grpc::ChannelInterface>& channel)
      : stub_(v1::Inference::NewStub(channel)) {}
  // Waits for the calls under way. The wait ends because every call has a deadline.
  ~Link() {
    MutexLock lock(&mutex_);
    const auto idle = [](int* uses) { return *uses == 0; };
    mutex_.Await(absl::Condition(+idle, &uses_));
  }

  v1::Inference::Stub& stub() { return *stub_; }

 private:
  const std::unique_ptr<v1::Inference::Stub> stub_;
  Mutex mutex_;
  int uses_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace bfio::client
