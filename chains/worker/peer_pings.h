// How far other servers of the pool are, by pings over connections like those that hidden rows take.
//
// Purpose: the figures behind PeerTimes. All peers at a time, several rounds; the first one, which connects,
// does not count, of the others the least does. Threads: one of its own, which calls `on_times`; Measure and
// destruction from the owner's, which acts on all else and never waits for a measurement.
#ifndef BFIO_CHAINS_WORKER_PEER_PINGS_H_
#define BFIO_CHAINS_WORKER_PEER_PINGS_H_

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
  // Breaks a measurement off.
  ~PeerPings();

  // What is measured when one is under way comes next, and is the newest that was asked for.
  void Measure(const v1::MeasurePeers& peers);

 private:
  class Round;

  void Run();
  // Waits for the next one; nothing at the end.
  std::optional<v1::MeasurePeers> Next();
  // Nothing at the end.
  std::optional<v1::PeerTimes> MeasureOnce(const v1::MeasurePeers& peers);
  // False at the end.
  bool Begin(Round* round);
  bool Ended();

  const std::shared_ptr<grpc::ChannelCredentials> credentials_;
  const std::function<void(v1::PeerTimes)> on_times_;
  Mutex mutex_;
  std::optional<v1::MeasurePeers> wanted_ ABSL_GUARDED_BY(mutex_);
  // Under way; of the thread's stack.
  Round* round_ ABSL_GUARDED_BY(mutex_) = nullptr;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace bfio::worker

#endif  // BFIO_CHAINS_WORKER_PEER_PINGS_H_
