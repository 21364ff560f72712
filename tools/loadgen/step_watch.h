// Reads the router's steps while a run is under way.
//
// Purpose: Admin.WatchSteps into a GroupTimeline. A stream that ends (the router restarted) is opened
// again after a second, until Finish. Threads: one of its own, which alone touches the timeline until Finish
// has returned; Finish and the destructor end it, and take no longer than a cancelled RPC does.
#ifndef BFIO_TOOLS_LOADGEN_STEP_WATCH_H_
#define BFIO_TOOLS_LOADGEN_STEP_WATCH_H_

#include <memory>
#include <thread>

#include "absl/time/time.h"
#include "bfio/v1/admin.grpc.pb.h"
#include "common/base/mutex.h"
#include "common/net/login.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "tools/loadgen/group_timeline.h"

namespace bfio::loadgen {

class StepWatch {
 public:
  // `start` by MonotonicNow: what times count from. `login` outlives the watch.
  StepWatch(const std::shared_ptr<grpc::Channel>& admin, const Login& login, absl::Time start);
  ~StepWatch();
  StepWatch(const StepWatch&) = delete;
  StepWatch& operator=(const StepWatch&) = delete;

  // Ends the watch. Call once.
  GroupTimeline Finish();

 private:
  void Run();
  void ReadStream();
  void Stop() ABSL_LOCKS_EXCLUDED(mutex_);

  const Login& login_;
  const absl::Time start_;
  const std::unique_ptr<v1::Admin::Stub> stub_;
  // The thread's own until it has ended.
  GroupTimeline timeline_;
  // Once for as long as no step comes.
  bool warned_ = false;

  Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  // Of the stream under way.
  grpc::ClientContext* context_ ABSL_GUARDED_BY(mutex_) = nullptr;
  std::thread thread_;
};

}  // namespace bfio::loadgen

#endif  // BFIO_TOOLS_LOADGEN_STEP_WATCH_H_
