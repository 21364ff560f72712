// A server's Pipeline service: passes micro-batches from predecessors to their stage or head. Chains are
// registered while they exist. A stream names its chain and stage first, and each stage accepts one stream at
// a time. An invalid message ends the stream and the chain; the end of a stream ends the chain too. When a
// chain is unregistered its stream is ended, so that the failure also propagates upstream. Threads: Register
// and Unregister from any thread but gRPC's; the callbacks run on gRPC's. Must outlive the server it is
// registered with.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "bfio/v1/pipeline.pb.h"
#include "chains/pipeline/stage.h"
#include "common/base/mutex.h"
#include "common/net/call_service.h"
#include "common/net/first_messages.h"
#include "common/net/port.h"

namespace bfio::worker {

// Upper bound of a message with its page lists: kMaxHiddenBytes, pages of at most 5 bytes each, and a margin.
inline constexpr int kMaxPassBytes = 32 << 20;

class PassService final : public CallService {
 public:
  PassService();

  // `inlet` must stay valid until Unregister.
  void Register(uint64_t chain, uint32_t stage, Inlet* inlet);
  // When it returns, the inlet is not called any more.
  void Unregister(uint64_t chain);

  // Called with the address of each caller that TLS has accepted, in the form of grpc::ServerContext::peer.
  // REQUIRES: set before the first call.
  void set_on_accepted(std::function<void(const std::string& peer)> on_accepted) {
    on_accepted_ = std::move(on_accepted);
  }
  FirstMessages* first_messages() { return &messages_; }

 private:
  class Reader;

  // The entry of a registered chain.
  struct Gate {
    explicit Gate(uint32_t number, Inlet* to) : stage(number), inlet(to) {}
    const uint32_t stage;
    Mutex mutex;
    // Null after Unregister.
    Inlet* inlet ABSL_GUARDED_BY(mutex);
    std::shared_ptr<Reader> reader ABSL_GUARDED_BY(mutex);
  };

  std::shared_ptr<Gate> Find(uint64_t chain);

  FirstMessages messages_{MessageLimits(kMaxPassBytes)};
  std::function<void(const std::string&)> on_accepted_ = [](const std::string&) {};
  Mutex mutex_;
  absl::flat_hash_map<uint64_t, std::shared_ptr<Gate>> gates_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace bfio::worker
