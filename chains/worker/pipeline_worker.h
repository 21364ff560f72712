// A worker that serves parts of a model in chains (--pipeline_listen), from start to clean end.
//
// Purpose: opens the Pipeline service, joins the router's ChainPool with what this server can hold, and does
// as the pool says. Measures a block before it joins, and its paths to the other servers on request.
// The router composes, because it sees every server join and leave, so servers never disagree about the
// placement; a server has only its own part and its successor.
//
// Ends: after a signal the heads here are drained, other parts end at once (their chains' requests are
// replayed), and the pool composes again from the remaining servers. Without a router chains continue,
// and are announced to the next router. Threads: blocks its caller; the pool's reader, and per
// chain a stage's or a rank's.
#ifndef BFIO_CHAINS_WORKER_PIPELINE_WORKER_H_
#define BFIO_CHAINS_WORKER_PIPELINE_WORKER_H_

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
  // Every chain that has its head here is a rank of its own. A pool that has another model is no end: the
  // server asks again (refusal_delay.h).
  absl::Status Run(const WorkerOptions& options, std::shared_ptr<grpc::Channel> router,
                   MakePartRank make_rank) const override;

 private:
  const PipelineOptions pipeline_;
};

}  // namespace bfio::worker

#endif  // BFIO_CHAINS_WORKER_PIPELINE_WORKER_H_
