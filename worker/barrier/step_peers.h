// A rank's peers in one step that all ranks compute together (--mlp=tp).
//
// Purpose: gives an engine what it needs of its group: its rank, the number of rows that all ranks pad to,
// and the two collectives, with one deadline for all calls of a step. It also distinguishes errors of the
// group from errors of the engine, and measures how long the rank has waited. Only time inside the calls
// counts: waits of collectives that are queued on a device are not included. Threads: used by one thread.
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
  // `barrier` is that of `group` and must outlive this. `rows`: the largest number of rows of any rank in
  // step `step`. `timeout` starts now.
  StepPeers(const GroupSpec& group, Barrier& barrier, int64_t step, int64_t rows, absl::Duration timeout);

  int32_t rank() const { return rank_; }
  int32_t world_size() const { return world_size_; }
  int64_t rows() const { return rows_; }

  // As Barrier's.
  absl::Status AllGather(absl::Span<const float> mine, absl::Span<float> all);
  absl::Status ReduceScatter(absl::Span<const float> mine, absl::Span<float> sum);

  // Whether the barrier has collectives on the device. The next four functions need them, and are as in
  // DeviceCollectives.
  bool on_device() const { return device_ != nullptr; }
  absl::Status QueueAllGather(const void* mine, void* all, int64_t count, void* stream);
  absl::Status QueueReduceScatter(const float* mine, float* sum, int64_t count, void* stream);
  // As Check; DEADLINE_EXCEEDED when the step's time has run out.
  absl::Status CheckDevice();
  // For an engine that fails between two collectives: ends the barrier, so that a peer's next collective does
  // not match a later call of this rank. Not an error of the peers: status() stays OK.
  void FailDevice(const absl::Status& why);

  // The first error of a call. After an error the step cannot be completed in this epoch.
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
