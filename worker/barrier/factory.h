// Makes barrier endpoints by name. Threads: as in barrier.h.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/barrier/barrier.h"

namespace bfio::worker {

struct BarrierOptions {
  // star: address at which this rank listens, as its peers reach it.
  std::string host = "127.0.0.1";
  // nccl: ordinal of this rank's GPU.
  int device = 0;
};

// `name`: "star", "star_tls" or "nccl". INVALID_ARGUMENT: another name; FAILED_PRECONDITION: this
// program was built without it; UNAVAILABLE: the machine lacks what it needs.
absl::StatusOr<std::unique_ptr<BarrierEndpoint>> MakeBarrierEndpoint(absl::string_view name,
                                                                     const BarrierOptions& options);

}  // namespace bfio::worker
