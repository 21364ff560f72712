// Interface of code that a worker runs instead of ranks with whole models; chains/worker implements it.
// Threads: one; Run blocks its caller.
#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/link/rank.h"

namespace bfio::worker {

struct WorkerOptions;

// A rank of such a server. Its engine computes together with the parts on other servers.
struct PartRank {
  // Distinguishes it from the process's other ranks.
  std::string suffix;
  // Digest of the model that the engine computes (worker/engine/model/model.h).
  std::string model;
  // Expected time of a mean request in seconds; 0: not known.
  double service_s = 0;
  std::unique_ptr<Engine> engine;
};
using MakePartRank = std::function<absl::StatusOr<std::unique_ptr<Rank>>(PartRank)>;

class PartServer {
 public:
  virtual ~PartServer() = default;

  // INVALID_ARGUMENT, naming the flag, when an option is out of range or does not apply to this server.
  virtual absl::Status Check(const WorkerOptions& options) const = 0;
  // As RunWorker. `router`: the channel to it, which outlives the ranks.
  virtual absl::Status Run(const WorkerOptions& options, std::shared_ptr<grpc::Channel> router,
                           MakePartRank make_rank) const = 0;
};

}  // namespace bfio::worker
