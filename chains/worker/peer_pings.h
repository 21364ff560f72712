// Measures round trips to other servers of the pool, by pings over connections like those for hidden rows.
// The measurements for PeerTimes. All peers concurrently, in several rounds; the first round, which connects,
// is not counted, and the smallest of the others is taken. Threads: one of its own, which calls `on_times`;
// Measure and destruction from the owner's thread, which never waits for a measurement.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <thread>

#include "bfio/v1/pipeline.pb.h"
#include "common/base/mutex.h"
#include "grpcpp/security/credentials.h"

namespace bfio::worker {

class PeerPings {
 public:
  PeerPings(std::shared_ptr<grpc::ChannelCredentials> credentials,
            std::function<void(v1::PeerTimes)> on_times);
  // Cancels a running measurement.
  ~PeerPings();

  // Requests a measurement. During a running one the latest request is kept and measured next.
  void Measure(const v1::MeasurePeers& peers);

 private:
  class Round;

  void Run();
  // Waits for the next request; absent at the end.
  std::optional<v1::MeasurePeers> Next();
  // Absent at the end.
  std::optional<v1::PeerTimes> MeasureOnce(const v1::MeasurePeers& peers);
  // False at the end.
  bool Begin(Round* round);
  bool Ended();

  const std::shared_ptr<grpc::ChannelCredentials> credentials_;
  const std::function<void(v1::PeerTimes)> on_times_;
  Mutex mutex_;
  std::optional<v1::MeasurePeers> wanted_ ABSL_GUARDED_BY(mutex_);
  // The running round; on the thread's stack.
  Round* round_ ABSL_GUARDED_BY(mutex_) = nullptr;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace bfio::worker
