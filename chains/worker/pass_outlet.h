// The stream to the next server of a chain. Sends micro-batches in order; the queue is bounded by
// kMaxInFlight. Micro-batches sent before Open wait. The end of the stream, for any reason, is reported once
// and is final: a broken chain is not repaired but composed again. Threads: Send from the stage's or head's
// thread; the others, and destruction, from the owner's thread, never from gRPC's, because destruction waits
// for the end of the call.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "chains/pipeline/stage.h"

namespace grpc {
class ChannelCredentials;
}

namespace bfio::worker {

struct PassTarget {
  // HOST:PORT.
  std::string address;
  uint64_t chain = 0;
  // The receiver's stage.
  uint32_t stage = 0;
};

class PassOutlet final : public Outlet {
 public:
  // `on_lost` is called at most once, from one of gRPC's threads.
  PassOutlet(PassTarget target, std::shared_ptr<grpc::ChannelCredentials> credentials,
             std::function<void(const absl::Status&)> on_lost);
  ~PassOutlet() override;

  // Call it at most once.
  void Open();
  absl::Status Send(MicroBatch batch) override;

 private:
  class Call;

  const PassTarget target_;
  const std::unique_ptr<Call> call_;
};

}  // namespace bfio::worker
