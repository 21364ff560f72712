// A worker that serves parts of a model in chains (--pipeline_listen), from start to clean end.
//
// Purpose: opens the Pipeline service, joins the router's ChainPool with what this server can hold, and does
// what the pool says. Measures a block before it joins, and its way to the other servers when it is asked.
// Who composes: the router, which sees every server come and go, so no two servers ever disagree about who
// hosts what; a server only knows its own part and its successor.
//
// Ends: after a signal the heads here are drained, other parts are simply left (their chains' requests are
// replayed), and the pool composes anew from the servers that remain. While the router is away chains go on,
// and are announced to the router that comes after it. Threads: blocks its caller; the pool's reader, and per
// chain a stage's or a rank's.
#ifndef BFIO_WORKER_LINK_PIPELINE_PIPELINE_WORKER_H_
#define BFIO_WORKER_LINK_PIPELINE_PIPELINE_WORKER_H_

#include <memory>

#include "absl/status/status.h"
#include "worker/link/pipeline/chain_host.h"
#include "worker/link/rank_recorder.h"
#include "worker/link/worker.h"

namespace bfio::worker {

// INVALID_ARGUMENT, naming the flag, when an option is out of range or does not go with chains.
absl::Status CheckPipelineOptions(const WorkerOptions& options);

// `make_rank` makes the rank of a head around its engine. As RunWorker.
absl::Status RunPipelineWorker(const WorkerOptions& options, std::shared_ptr<grpc::Channel> router,
                               MakeHead make_rank);

}  // namespace bfio::worker

#endif  // BFIO_WORKER_LINK_PIPELINE_PIPELINE_WORKER_H_
