// Collectives between the ranks' device memory, for barriers that have them.
//
// Purpose: for engines that keep their activations on the device (--mlp=tp). A call queues the collective in
// the engine's stream, after the work that produces its input, and returns; no data goes through the host.
// Stream and memory must belong to the device that the barrier was made for. The order of the barrier's calls
// includes these: all ranks make the same ones in the same order, with the same sizes.
//
// Errors: as Barrier's, from the call or from a later Check, because a queued operation does not report that
// a peer was lost. After any error the barrier is unusable; queued work ends soon, with undefined results.
//
// Threads: the thread of the barrier's calls. Builds without CUDA.
#ifndef BFIO_WORKER_BARRIER_DEVICE_COLLECTIVES_H_
#define BFIO_WORKER_BARRIER_DEVICE_COLLECTIVES_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace bfio::worker {

class DeviceCollectives {
 public:
  virtual ~DeviceCollectives() = default;

  // Every rank contributes `mine`, `count` bf16 elements; all receive `all`, [world_size][count], in the
  // order of ranks. `stream` is a cudaStream_t. `timeout` bounds only the queueing.
  virtual absl::Status QueueAllGather(const void* mine, void* all, int64_t count, void* stream,
                                      absl::Duration timeout) = 0;
  // Sums in fp32 and scatters: a rank contributes `mine`, [world_size][count], one term for each rank's sum
  // (zeros if it has none), and receives its own sum in `sum`, [count]. The order of summation is the
  // collective's.
  virtual absl::Status QueueReduceScatter(const float* mine, float* sum, int64_t count, void* stream,
                                          absl::Duration timeout) = 0;

  // Reports errors of queued work. Must be called repeatedly until the work has ended, and once afterwards
  // before its results are used.
  virtual absl::Status Check() = 0;
  // Ends the barrier with the error `why`.
  virtual void Fail(const absl::Status& why) = 0;
};

}  // namespace bfio::worker

#endif  // BFIO_WORKER_BARRIER_DEVICE_COLLECTIVES_H_
