// The neighbours of a server in a chain, as interfaces: where to send, and where to receive. Keeps stages and
// heads independent of gRPC; chains/worker implements the streams.
#pragma once

#include "absl/status/status.h"
#include "chains/pipeline/micro_batch.h"

namespace bfio::worker {

// Sends to the next server of the chain, or from the last one back to the head.
class Outlet {
 public:
  virtual ~Outlet() = default;
  // Never blocks; accepted micro-batches are sent in order. RESOURCE_EXHAUSTED when kMaxInFlight are waiting
  // already because the neighbour does not read. Threads: one.
  virtual absl::Status Send(MicroBatch batch) = 0;
};

// Receives the micro-batches of one chain. Threads: any, one at a time.
class Inlet {
 public:
  virtual ~Inlet() = default;
  // Never blocks. An error is returned to the sender, and ends the chain.
  virtual absl::Status Take(MicroBatch batch) = 0;
  // The stream has ended or was invalid: nothing more will come.
  virtual void OnLost(const absl::Status& why) = 0;
};

}  // namespace bfio::worker
