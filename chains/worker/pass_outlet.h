// The stream to the next server of a chain.
//
// Purpose: sends micro-batches in order; what waits is bounded by kMaxInFlight. Until Open what is sent
// waits. A stream that ends, for any reason, is reported once and stays ended: a broken chain is not
// repaired but composed again. Threads: Send from the stage's or head's thread; the others, and destruction,
// from the owner's, never from gRPC's: destruction waits for the call's end.
#ifndef BFIO_CHAINS_WORKER_PASS_OUTLET_H_
#define BFIO_CHAINS_WORKER_PASS_OUTLET_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "chains/pipeline/neighbours.h"

namespace grpc {
class ChannelCredentials;
}

namespace bfio::worker {

struct PassTarget {
  // HOST:PORT.
  std::string address;
  uint64_t chain = 0;
  // Of the receiver.
  uint32_t stage = 0;
};

class PassOutlet final : public Outlet {
 public:
  // `on_lost` is called once at most, from a thread of gRPC's.
  PassOutlet(PassTarget target, std::shared_ptr<grpc::ChannelCredentials> credentials,
             std::function<void(const absl::Status&)> on_lost);
  ~PassOutlet() override;

  // Once; nothing after that.
  void Open();
  absl::Status Send(MicroBatch batch) override;

 private:
  class Call;

  const PassTarget target_;
  const std::unique_ptr<Call> call_;
};

}  // namespace bfio::worker

#endif  // BFIO_CHAINS_WORKER_PASS_OUTLET_H_
