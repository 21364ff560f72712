// Streams of step summaries to watchers.
//
// Purpose: Publish costs the decision thread one lock and one pointer per watcher; a watcher that reads too
// slowly loses the oldest summaries; `dropped` counts them. Threads: Publish from the decision thread,
// Subscribe and Close from any; each watcher's stream is gRPC's.
#ifndef BFIO_ROUTER_ADMIN_STEP_BROADCAST_H_
#define BFIO_ROUTER_ADMIN_STEP_BROADCAST_H_

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "bfio/v1/admin.pb.h"
#include "common/base/mutex.h"
#include "common/net/first_messages.h"
#include "router/group/step_statistics.h"

namespace bfio::router {

class StepBroadcast {
 public:
  class Watcher;

  using Stream = grpc::ServerBidiReactor<v1::WatchStepsRequest, v1::StepSummary>;

  // A stream of the summaries that its request asks for; gRPC owns what is returned. It ends with `allowed`
  // if that is an error, before its request is received (by `messages`, which outlives it), with
  // INVALID_ARGUMENT for every = 0 and RESOURCE_EXHAUSTED when kMaxWatchers watch already.
  Stream* Subscribe(const absl::Status& allowed, FirstMessages* messages);

  // Streams that get summaries.
  size_t watchers();

  void Publish(const std::shared_ptr<const StepSummary>& summary);

  // Ends all streams and refuses new ones.
  void Close();

 private:
  static constexpr size_t kMaxWatchers = 64;

  // It has said what it wants.
  void Add(const std::shared_ptr<Watcher>& watcher, uint32_t every);

  Mutex mutex_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::shared_ptr<Watcher>> watchers_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace bfio::router

#endif  // BFIO_ROUTER_ADMIN_STEP_BROADCAST_H_
