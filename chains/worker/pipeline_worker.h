// A worker that serves parts of a model in chains (--pipeline_listen), from start to shutdown. Opens the
// Pipeline service, joins the router's ChainPool with this server's capacity, and executes the pool's
// messages. Measures a block before it joins. The router
// composes chains, because every server joins and leaves through it, so the placement is the same for all
// servers; a server has only its own part and its successor.
//
// Shutdown: after a signal the heads here are drained, and other parts end at once (their chains' requests
// are replayed); the pool composes again from the remaining servers. Without a router chains continue, and
// are announced to the next router. Threads: blocks its caller; also the pool's reader, and for each chain a
// stage's or a rank's thread.
#pragma once

#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "chains/worker/chain_host.h"
#include "worker/link/part_server.h"
#include "worker/link/worker.h"

namespace bfio::worker {

class PipelineWorker final : public PartServer {
 public:
  explicit PipelineWorker(PipelineOptions options) : pipeline_(std::move(options)) {}

  absl::Status Check(const WorkerOptions& options) const override;
  // Every chain with its head here has a separate rank. If the pool has another model, the server does not
  // exit but tries again (kFirstRefusal).
  absl::Status Run(const WorkerOptions& options, std::shared_ptr<grpc::Channel> router,
                   MakePartRank make_rank) const override;

 private:
  const PipelineOptions pipeline_;
};

}  // namespace bfio::worker
