// The barrier: the collective in which all ranks of a group meet once per step.
//
// Purpose: one interface over NCCL, the CPU star/tree collective and the in-process one. The all-reduce
// carries each rank's load and local time, so that every rank learns the group's maximum and sum.
//
// Life: a BarrierEndpoint lives as long as the rank. Each epoch: every rank calls Offer; the router passes
// rank 0's offer to all as the communicator id; every rank calls Form and gets a Barrier of that epoch; when
// membership changes the Barrier is destroyed and the next one formed. Destroying a Barrier makes the peers'
// AllReduce fail fast.
//
// Threads: one thread calls; only Barrier::Abort and the stop token of Form may be used from other threads.
// Builds alone, without gRPC.
#ifndef BFIO_WORKER_BARRIER_BARRIER_H_
#define BFIO_WORKER_BARRIER_BARRIER_H_

#include <cstdint>
#include <memory>
#include <stop_token>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace bfio::worker {

// What a rank brings to a step's barrier.
struct Contribution {
  // L_g of the step, in tokens.
  int64_t load_tokens = 0;
  // Local compute of the step.
  int64_t local_ns = 0;
  // Requests that stay active after the step, plus assignments already received for a later step: the group
  // is idle when the sum is 0.
  int64_t active = 0;
};

// What every rank learns, alike on all ranks.
struct GroupView {
  int64_t max_load_tokens = 0;
  int64_t sum_load_tokens = 0;
  int64_t max_local_ns = 0;
  int64_t sum_local_ns = 0;
  int64_t sum_active = 0;
};

class Barrier {
 public:
  virtual ~Barrier() = default;

  // Meets the other ranks in step `step` of this epoch. DEADLINE_EXCEEDED when some rank did not arrive in
  // time; UNAVAILABLE when a peer has left or died, CANCELLED after Abort, INTERNAL when the ranks disagree
  // about the step. After any error this barrier is finished: every later call fails, and so do the peers'
  // (soon, not at their deadline).
  virtual absl::StatusOr<GroupView> AllReduce(int64_t step, const Contribution& mine,
                                              absl::Duration timeout) = 0;

  // Makes a running or later AllReduce return CANCELLED soon. Any thread.
  virtual void Abort() = 0;
};

struct GroupSpec {
  uint64_t epoch = 0;
  int32_t rank = 0;
  int32_t world_size = 1;
  // Rank 0's offer.
  std::string communicator_id;
};

class BarrierEndpoint {
 public:
  virtual ~BarrierEndpoint() = default;

  // "star", "nccl" or "local".
  virtual absl::string_view name() const = 0;

  // What the other ranks need to meet here if this rank becomes rank 0; good for one epoch.
  virtual absl::StatusOr<std::string> Offer() = 0;

  // Forms the group; all ranks must call it with the same epoch. DEADLINE_EXCEEDED or UNAVAILABLE when the
  // others do not come; CANCELLED soon after a stop is requested (the epoch is out of date before it was
  // formed); INVALID_ARGUMENT when `group` makes no sense.
  virtual absl::StatusOr<std::unique_ptr<Barrier>> Form(const GroupSpec& group, absl::Duration timeout,
                                                        std::stop_token stop) = 0;
};

}  // namespace bfio::worker

#endif  // BFIO_WORKER_BARRIER_BARRIER_H_
