// The barrier over NCCL, for ranks that own a GPU each.
//
// State of knowledge: compiled and linked against NCCL 2.28, not yet run on a GPU unless docs/benchmarks.md
// says where.
//
// One all-reduce per step. Every rank writes its contribution, epoch and step into its own row of a zeroed
// [world][8] table of int64 and the ranks sum the tables, so that each gets every rank's row: from the rows
// it computes maxima and sums and sees whether all are at the same step. A maximum and a sum as two grouped
// all-reduces would carry fewer bytes (4 KiB at 64 ranks is still a small message) but be two work items and
// could not name a rank that is out of step.
//
// All-gather and reduce-scatter of host memory go through buffers of their own on both sides; those between
// device memory are queued in the caller's stream, in the communicator's order with all else.
//
// Bounded in time: the communicator is non-blocking (config.blocking = 0) and nothing here calls a
// synchronising CUDA function; the step polls the event, ncclCommGetAsyncError, the abort flag and the
// deadline. NCCL does not report a peer that died on NVLink: the deadline and the router's next Epoch
// (Barrier::Abort) end the wait then. ncclCommAbort itself can hang; it runs on a thread of its own, and when
// it misses its patience the process ends at once, with a line and exit code 1: a kernel that spins holds up
// whatever frees memory of its GPU, so there is no orderly way out. A supervisor starts the worker again.
//
// Threads: as barrier.h says; all NCCL calls but that ncclCommAbort come from the calling thread. No
// allocation per step.
#ifndef BFIO_WORKER_BARRIER_NCCL_NCCL_BARRIER_H_
#define BFIO_WORKER_BARRIER_NCCL_NCCL_BARRIER_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/barrier/barrier.h"

namespace bfio::worker {

struct NcclOptions {
  // Ordinal of the GPU this rank owns.
  int device = 0;
  // How long ncclCommAbort may take.
  absl::Duration abort_patience = absl::Seconds(10);
};

class NcclEndpoint final : public BarrierEndpoint {
 public:
  // UNAVAILABLE when there is no such GPU.
  static absl::StatusOr<std::unique_ptr<BarrierEndpoint>> Create(const NcclOptions& options);

  absl::string_view name() const override { return "nccl"; }
  // An ncclUniqueId. Each costs NCCL a thread and a socket that live until it is used, so an offer that
  // was not taken is offered again.
  absl::StatusOr<std::string> Offer() override;
  absl::StatusOr<std::unique_ptr<Barrier>> Form(const GroupSpec& group, absl::Duration timeout,
                                                std::stop_token stop) override;

 private:
  explicit NcclEndpoint(const NcclOptions& options) : options_(options) {}

  const NcclOptions options_;
  // Not used by an epoch yet; empty: none.
  std::string offer_;
};

}  // namespace bfio::worker

#endif  // BFIO_WORKER_BARRIER_NCCL_NCCL_BARRIER_H_
