// Streams of step summaries to watchers. Publish costs the decision thread one lock and one pointer per
// watcher. A watcher that reads too slowly loses the oldest summaries, counted in `dropped`. Threads: Publish
// from the decision thread, Subscribe and Close from any; each watcher's stream is gRPC's.
#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "bfio/v1/admin.pb.h"
#include "common/base/fair_share.h"
#include "common/base/mutex.h"
#include "common/net/first_messages.h"
#include "common/net/stream_writer.h"
#include "router/group/step_statistics.h"

namespace bfio::router {

class StepBroadcast {
 public:
  class Watcher;

  using Stream = CallReactor;

  // A stream of the summaries that its request selects; gRPC owns the result. If `allowed` is an error, the
  // stream ends with it before its request is received. `messages` receives the request, and outlives the
  // stream. It ends with INVALID_ARGUMENT for every = 0, with RESOURCE_EXHAUSTED beyond the peer's share
  // of kMaxWatchers, and with UNAUTHENTICATED once `still_allowed`, which is called about every kCheckEvery
  // while the stream is open, is false: its token was removed or has expired.
  Stream* Subscribe(const absl::StatusOr<Peer>& allowed, FirstMessages* messages,
                    std::function<bool()> still_allowed);

  // Number of streams that receive summaries.
  size_t watchers();

  void Publish(const std::shared_ptr<const StepSummary>& summary);

  // Ends all streams and refuses new ones.
  void Close();

 private:
  static constexpr size_t kMaxWatchers = 64;
  static constexpr absl::Duration kCheckEvery = absl::Seconds(1);

  // Called when the watcher's request has been received.
  void Add(const std::shared_ptr<Watcher>& watcher, uint32_t every);

  Mutex mutex_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::shared_ptr<Watcher>> watchers_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace bfio::router
