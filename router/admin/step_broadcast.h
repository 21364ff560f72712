// Step summaries to whoever watches.
//
// Purpose: Publish costs the decision thread one lock and one pointer per watcher; a watcher that reads too
// slowly loses the oldest summaries and is told how many. Threads: Publish from the decision thread,
// Subscribe and Close from any; each watcher's stream is gRPC's.
#ifndef BFIO_ROUTER_ADMIN_STEP_BROADCAST_H_
#define BFIO_ROUTER_ADMIN_STEP_BROADCAST_H_

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "bfio/v1/admin.pb.h"
#include "common/base/mutex.h"
#include "router/group/step_statistics.h"

namespace bfio::router {

class StepBroadcast {
 public:
  class Watcher;

  // A stream of every `every`-th summary; gRPC owns what is returned. Refused with INVALID_ARGUMENT for every
  // = 0 and RESOURCE_EXHAUSTED when kMaxWatchers watch already.
  grpc::ServerWriteReactor<v1::StepSummary>* Subscribe(uint32_t every);

  void Publish(const std::shared_ptr<const StepSummary>& summary);

  // Ends all streams and refuses new ones.
  void Close();

 private:
  static constexpr size_t kMaxWatchers = 64;

  Mutex mutex_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::shared_ptr<Watcher>> watchers_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace bfio::router

#endif  // BFIO_ROUTER_ADMIN_STEP_BROADCAST_H_
