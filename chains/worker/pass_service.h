// A server's Pipeline service: what predecessors send, handed to the stage or head that it is for.
//
// Purpose: chains are registered while they live; a stream names its chain and stage first, and each stage
// takes one stream at a time. A message that is not as it should be ends the stream and breaks the chain; a
// stream that ends breaks it too. When a chain is unregistered its stream is ended, so that breaking runs
// upstream as well. Threads: Register and Unregister from any thread but gRPC's; the reactions are gRPC's.
// Must outlive the server it is registered with.
#ifndef BFIO_CHAINS_WORKER_PASS_SERVICE_H_
#define BFIO_CHAINS_WORKER_PASS_SERVICE_H_

#include <cstdint>
#include <memory>

#include "absl/container/flat_hash_map.h"
#include "bfio/v1/pipeline.grpc.pb.h"
#include "chains/pipeline/neighbours.h"
#include "common/base/mutex.h"

namespace bfio::worker {

// Of one message with its page lists: kMaxHiddenBytes, pages of at most 5 bytes each, and some.
inline constexpr int kMaxPassBytes = 32 << 20;

class PassService final : public v1::Pipeline::CallbackService {
 public:
  // `inlet` is borrowed until Unregister.
  void Register(uint64_t chain, uint32_t stage, Inlet* inlet);
  // When it returns the inlet is not called any more.
  void Unregister(uint64_t chain);

  grpc::ServerBidiReactor<v1::PassMessage, v1::PassReply>* Pass(
      grpc::CallbackServerContext* context) override;
  grpc::ServerUnaryReactor* Ping(grpc::CallbackServerContext* context, const v1::PingRequest* request,
                                 v1::PingReply* reply) override;

 private:
  class Reader;

  // A chain's way in.
  struct Gate {
    explicit Gate(uint32_t number, Inlet* to) : stage(number), inlet(to) {}
    const uint32_t stage;
    Mutex mutex;
    // Null once it is unregistered.
    Inlet* inlet ABSL_GUARDED_BY(mutex);
    std::shared_ptr<Reader> reader ABSL_GUARDED_BY(mutex);
  };

  std::shared_ptr<Gate> Find(uint64_t chain);

  Mutex mutex_;
  absl::flat_hash_map<uint64_t, std::shared_ptr<Gate>> gates_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace bfio::worker

#endif  // BFIO_CHAINS_WORKER_PASS_SERVICE_H_
