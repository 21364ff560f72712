// How far other servers of the pool are, by pings over connections like those that hidden rows take.
//
// Purpose: the figures behind PeerTimes. All peers at a time, several rounds; the first one, which connects,
// does not count, of the others the least does. Threads: one of its own per measurement; Measure and
// destruction from the owner's, `on_times` from that thread, once, unless it is destroyed before.
#ifndef BFIO_WORKER_LINK_PIPELINE_PEER_PINGS_H_
#define BFIO_WORKER_LINK_PIPELINE_PEER_PINGS_H_

#include <functional>
#include <memory>
#include <thread>

#include "bfio/v1/pipeline.pb.h"
#include "common/base/mutex.h"
#include "grpcpp/security/credentials.h"

namespace bfio::worker {

class PeerPings {
 public:
  PeerPings(std::shared_ptr<grpc::ChannelCredentials> credentials,
            std::function<void(v1::PeerTimes)> on_times)
      : credentials_(std::move(credentials)), on_times_(std::move(on_times)) {}
  ~PeerPings();

  // Waits for a measurement that is under way, 2.25 s at most; so does destruction.
  void Measure(const v1::MeasurePeers& peers);

 private:
  v1::PeerTimes Run(const v1::MeasurePeers& peers);

  const std::shared_ptr<grpc::ChannelCredentials> credentials_;
  const std::function<void(v1::PeerTimes)> on_times_;
  std::thread thread_;
};

}  // namespace bfio::worker

#endif  // BFIO_WORKER_LINK_PIPELINE_PEER_PINGS_H_
