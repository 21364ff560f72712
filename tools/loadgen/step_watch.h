// Reads the router's steps while a run is under way.
//
// Purpose: collects Admin.WatchSteps in a GroupTimeline. A stream that ends (the router restarted) is opened
// again after a second, until Finish. Threads: the watch has one thread, which alone accesses the timeline
// until Finish has returned. Finish and the destructor end it, which takes no longer than cancelling an RPC.
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
  // `start`: time of MonotonicNow from which times are counted. `login` outlives the watch.
  StepWatch(const std::shared_ptr<grpc::Channel>& admin, const Login& login, absl::Time start);
  ~StepWatch();
  StepWatch(const StepWatch&) = delete;
  StepWatch& operator=(const StepWatch&) = delete;

  // Ends the watch. Called once.
  GroupTimeline Finish();

 private:
  void Run();
  void ReadStream();
  void Stop() ABSL_LOCKS_EXCLUDED(mutex_);

  const Login& login_;
  const absl::Time start_;
  const std::unique_ptr<v1::Admin::Stub> stub_;
  // Accessed only by the thread until it has ended.
  GroupTimeline timeline_;
  // The warning is given once for each period without steps.
  bool warned_ = false;

  Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  // Context of the stream under way.
  grpc::ClientContext* context_ ABSL_GUARDED_BY(mutex_) = nullptr;
  std::thread thread_;
};

}  // namespace bfio::loadgen

#endif  // BFIO_TOOLS_LOADGEN_STEP_WATCH_H_
