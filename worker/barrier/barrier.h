// The barrier: the collective in which all ranks of a group meet once per step.
//
// Purpose: one interface over NCCL, the CPU star/tree collective and the in-process one. The all-reduce
// carries each rank's load and local time, so that every rank learns the group's maximum and sum. Ranks that
// share out a model's MLP (--mlp=tp) also exchange activations, by AllGather and ReduceScatter, and agree by
// a first all-reduce on the rows of the step.
//
// Order: the ranks of a group make the same calls in the same order; every call names its step. A rank that
// comes with another kind of call, another step or another size is found out and ends the barrier (INTERNAL).
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
#include "absl/types/span.h"

namespace bfio::worker {

class DeviceCollectives;

// Why a rank takes its leave with a step: bits of stop_flags.
//
// Its engine has failed: what it was to compute in the step is missing.
inline constexpr uint32_t kStopEngineFailed = 1;

// What a rank brings to a step's barrier.
struct Contribution {
  // L_g of the step, in tokens.
  int64_t load_tokens = 0;
  // Local compute of the step.
  int64_t local_ns = 0;
  // Requests that stay active after the step, plus assignments already received for a later step: the group
  // is idle when the sum is 0.
  int64_t active = 0;
  // Tokens that the rank computes in the step.
  int64_t rows = 0;
  // All ranks leave the epoch together after a step in which some rank raised a flag.
  uint32_t stop_flags = 0;
};

// What every rank learns, alike on all ranks.
struct GroupView {
  int64_t max_load_tokens = 0;
  int64_t sum_load_tokens = 0;
  int64_t max_local_ns = 0;
  int64_t sum_local_ns = 0;
  int64_t sum_active = 0;
  // The bucket that all ranks pad to, where they compute together.
  int64_t max_rows = 0;
  // Those of all ranks.
  uint32_t stop_flags = 0;
};

class Barrier {
 public:
  virtual ~Barrier() = default;

  // Meets the other ranks in step `step` of this epoch. DEADLINE_EXCEEDED when some rank did not arrive in
  // time; UNAVAILABLE when a peer has left or failed, CANCELLED after Abort, INTERNAL when the ranks disagree
  // about the step. After any error this barrier is finished: every later call fails, and so do the peers'
  // (soon, not at their deadline).
  virtual absl::StatusOr<GroupView> AllReduce(int64_t step, const Contribution& mine,
                                              absl::Duration timeout) = 0;

  // Every rank brings `mine`, all of one size n; all get `all`, [world_size][n], in the order of ranks.
  // Errors: AllReduce's; INTERNAL also when the ranks' sizes differ.
  virtual absl::Status AllGather(int64_t step, absl::Span<const float> mine, absl::Span<float> all,
                                 absl::Duration timeout) = 0;

  // Adds up and shares out: rank d gets in `sum`, [n], what all ranks brought for it. A rank brings its nodes
  // of the summation tree (summation_tree.h): `mine` is [nodes][world_size][n]. The CPU collectives add in
  // the tree's order, so the sum is the same to the last bit in groups of every size; NCCL adds in an order
  // of its own. Errors: AllGather's.
  virtual absl::Status ReduceScatter(int64_t step, absl::Span<const float> mine, absl::Span<float> sum,
                                     absl::Duration timeout) = 0;

  // The same two between device memory; null where this barrier has none. Lives as long as the barrier.
  virtual DeviceCollectives* device() { return nullptr; }

  // Makes a running or later call return CANCELLED soon. Any thread.
  virtual void Abort() = 0;
};

struct GroupSpec {
  uint64_t epoch = 0;
  int32_t rank = 0;
  int32_t world_size = 1;
  // Rank 0's offer.
  std::string communicator_id;
  // What the ranks compute together, in a number that must be the same on all; 0: nothing.
  uint64_t signature = 0;
};

class BarrierEndpoint {
 public:
  virtual ~BarrierEndpoint() = default;

  // "star", "star_tls", "nccl" or "local".
  virtual absl::string_view name() const = 0;

  // What the other ranks need to meet here if this rank becomes rank 0; good for one epoch.
  virtual absl::StatusOr<std::string> Offer() = 0;

  // Forms the group; all ranks must call it with the same epoch. DEADLINE_EXCEEDED or UNAVAILABLE when the
  // others do not come; CANCELLED soon after a stop is requested (the epoch is out of date before it was
  // formed); INVALID_ARGUMENT when `group` makes no sense; FAILED_PRECONDITION when the ranks' signatures
  // differ.
  virtual absl::StatusOr<std::unique_ptr<Barrier>> Form(const GroupSpec& group, absl::Duration timeout,
                                                        std::stop_token stop) = 0;
};

}  // namespace bfio::worker

#endif  // BFIO_WORKER_BARRIER_BARRIER_H_
