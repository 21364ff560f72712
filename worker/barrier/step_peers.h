// A rank's peers in one step that all of them compute together (--mlp=tp).
//
// Purpose: what an engine needs of its group: its rank, the number of rows that all ranks pad to, and the two
// collectives, with one deadline over all of a step's calls. It also distinguishes the cause of an error
// (the engine's, or the group's), and how long the rank has waited: in the calls, so that waits for peers of
// collectives that are queued on a device are not in it. Threads: one.
#ifndef BFIO_WORKER_BARRIER_STEP_PEERS_H_
#define BFIO_WORKER_BARRIER_STEP_PEERS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "worker/barrier/barrier.h"
#include "worker/barrier/device_collectives.h"

namespace bfio::worker {

class StepPeers {
 public:
  // `barrier` is that of `group` and outlives this. `rows`: the largest number of rows of any rank in step
  // `step`. `timeout` runs from now.
  StepPeers(const GroupSpec& group, Barrier& barrier, int64_t step, int64_t rows, absl::Duration timeout);

  int32_t rank() const { return rank_; }
  int32_t world_size() const { return world_size_; }
  int64_t rows() const { return rows_; }

  // As Barrier's.
  absl::Status AllGather(absl::Span<const float> mine, absl::Span<float> all);
  absl::Status ReduceScatter(absl::Span<const float> mine, absl::Span<float> sum);

  // Whether the barrier has collectives on the device; the next four are for that. As DeviceCollectives'.
  bool on_device() const { return device_ != nullptr; }
  absl::Status QueueAllGather(const void* mine, void* all, int64_t count, void* stream);
  absl::Status QueueReduceScatter(const float* mine, float* sum, int64_t count, void* stream);
  // Check, and DEADLINE_EXCEEDED when the step's time is over.
  absl::Status CheckDevice();
  // For an engine that fails between two collectives: a peer's next one must not meet what this rank calls
  // next. No error of the peers'.
  void FailDevice(const absl::Status& why);

  // The first error of a call: from then on the step cannot be completed in this epoch.
  const absl::Status& status() const { return status_; }
  absl::Duration waited() const { return waited_; }

 private:
  template <typename Call>
  absl::Status Timed(const Call& call);

  const int32_t rank_;
  const int32_t world_size_;
  Barrier& barrier_;
  DeviceCollectives* const device_;
  const int64_t step_;
  const int64_t rows_;
  const absl::Time deadline_;
  absl::Status status_;
  absl::Duration waited_;
};

}  // namespace bfio::worker

#endif  // BFIO_WORKER_BARRIER_STEP_PEERS_H_
