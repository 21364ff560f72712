// The NCCL barrier (2.28), for ranks that own one GPU each. One all-reduce per step: every rank writes its
// contribution, epoch and step into its own row of a zeroed [world][6] table of int64, and the ranks sum the
// tables. From the rows each computes maxima and sums, and checks that all ranks are at the same step.
//
// All waits are bounded: the communicator is non-blocking and nothing here calls a synchronising CUDA
// function; the step polls the event, ncclCommGetAsyncError, the abort flag and the deadline. NCCL does not
// report a peer that died on NVLink: then the deadline or Barrier::Abort ends the wait. ncclCommAbort itself
// can hang. It runs on its own thread, and when it exceeds abort_patience the process exits at once with code
// 1: a spinning kernel blocks every call that frees memory of its GPU, so a supervisor must restart the
// worker.
//
// Threads: as in barrier.h; all NCCL calls except that ncclCommAbort come from the calling thread. Does not
// allocate per step.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/barrier/barrier.h"

namespace bfio::worker {

struct NcclOptions {
  // Ordinal of this rank's GPU.
  int device = 0;
  // Upper bound of the time that ncclCommAbort may take.
  absl::Duration abort_patience = absl::Seconds(10);
};

class NcclEndpoint final : public BarrierEndpoint {
 public:
  // UNAVAILABLE when there is no such GPU.
  static absl::StatusOr<std::unique_ptr<BarrierEndpoint>> Create(const NcclOptions& options);

  absl::string_view name() const override { return "nccl"; }
  // Returns an ncclUniqueId. Each costs NCCL a thread and a socket until it is used, so an unused offer is
  // returned again.
  absl::StatusOr<std::string> Offer() override;
  absl::StatusOr<std::unique_ptr<Barrier>> Form(const GroupSpec& group, absl::Duration timeout,
                                                std::stop_token stop) override;

 private:
  explicit NcclEndpoint(const NcclOptions& options) : options_(options) {}

  const NcclOptions options_;
  // An offer that no epoch has used; empty: none.
  std::string offer_;
};

}  // namespace bfio::worker
