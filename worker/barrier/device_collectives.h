// Collectives between memory of the ranks' devices, where a barrier has them.
//
// Purpose: for engines that keep their activations on the device (--mlp=tp): a call queues the collective in
// the engine's stream, behind what makes its input, and returns; nothing crosses the host. Its stream and its
// memory belong to the device that the barrier was made for. Calls count among the barrier's: all ranks make
// the same ones in the same order, with the same sizes.
//
// Errors: as Barrier's, of a call or of a later Check, because a queued operation does not report that a peer
// was lost. After any error the barrier is finished and what is queued ends soon, with any numbers as its
// results.
//
// Threads: that of the barrier's calls. Builds without CUDA.
#ifndef BFIO_WORKER_BARRIER_DEVICE_COLLECTIVES_H_
#define BFIO_WORKER_BARRIER_DEVICE_COLLECTIVES_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace bfio::worker {

class DeviceCollectives {
 public:
  virtual ~DeviceCollectives() = default;

  // Every rank brings `mine`, `count` bf16; all get `all`, [world_size][count], in the order of ranks.
  // `stream` is a cudaStream_t. `timeout` is for queueing alone.
  virtual absl::Status QueueAllGather(const void* mine, void* all, int64_t count, void* stream,
                                      absl::Duration timeout) = 0;
  // Adds up and shares out in fp32: a rank brings `mine`, [world_size][count], one term of each rank's sum
  // (zeros where it has none), and gets its own in `sum`, [count]. The order of the sum is the collective's
  // own.
  virtual absl::Status QueueReduceScatter(const float* mine, float* sum, int64_t count, void* stream,
                                          absl::Duration timeout) = 0;

  // To be asked while what is queued has not ended, and when it has, before its results count.
  virtual absl::Status Check() = 0;
  // Ends the barrier with `why`.
  virtual void Fail(const absl::Status& why) = 0;
};

}  // namespace bfio::worker

#endif  // BFIO_WORKER_BARRIER_DEVICE_COLLECTIVES_H_
