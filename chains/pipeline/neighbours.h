// What a server of a chain knows of its neighbours: somewhere to send to, and somewhere that takes.
//
// Purpose: the stages and the head compute without knowing gRPC; chains/worker has the streams.
#ifndef BFIO_CHAINS_PIPELINE_NEIGHBOURS_H_
#define BFIO_CHAINS_PIPELINE_NEIGHBOURS_H_

#include "absl/status/status.h"
#include "chains/pipeline/micro_batch.h"

namespace bfio::worker {

// The way to the next server of the chain, or from the last one back to the head.
class Outlet {
 public:
  virtual ~Outlet() = default;
  // Never blocks; what it takes is sent in order. RESOURCE_EXHAUSTED when kMaxInFlight wait already: the
  // neighbour does not take them. Threads: one.
  virtual absl::Status Send(MicroBatch batch) = 0;
};

// Where micro-batches of one chain arrive. Threads: any, one at a time.
class Inlet {
 public:
  virtual ~Inlet() = default;
  // Never blocks. An error is the sender's: the chain is broken by it.
  virtual absl::Status Take(MicroBatch batch) = 0;
  // Nothing more will come, or what came was wrong.
  virtual void OnLost(const absl::Status& why) = 0;
};

}  // namespace bfio::worker

#endif  // BFIO_CHAINS_PIPELINE_NEIGHBOURS_H_
