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

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "worker/link/pipeline/chain_host.h"
#include "worker/link/rank_recorder.h"
#include "worker/link/worker.h"

namespace bfio::worker {

// INVALID_ARGUMENT, naming the flag, when an option is out of range or does not go with chains.
absl::Status CheckPipelineOptions(const WorkerOptions& options);

// The rank of a chain's head around its engine, which computes that model.
using MakeModelHead = std::function<absl::StatusOr<std::unique_ptr<Rank>>(
    const v1::ChainStage& stage, const ModelDigest& model, std::unique_ptr<Engine> engine)>;

// As RunWorker. A pool that has another model is no end: the server asks again (refusal_delay.h).
absl::Status RunPipelineWorker(const WorkerOptions& options, std::shared_ptr<grpc::Channel> router,
                               MakeModelHead make_rank);

}  // namespace bfio::worker

#endif  // BFIO_WORKER_LINK_PIPELINE_PIPELINE_WORKER_H_
