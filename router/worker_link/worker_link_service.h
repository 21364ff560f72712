// bfio.v1.WorkerLink: where bfio's workers attach.
//
// Threads: methods run on gRPC's threads and never block. The handler outlives the server that the service is
// registered with.
#ifndef BFIO_ROUTER_WORKER_LINK_WORKER_LINK_SERVICE_H_
#define BFIO_ROUTER_WORKER_LINK_WORKER_LINK_SERVICE_H_

#include <grpcpp/grpcpp.h>

#include <atomic>

#include "bfio/v1/worker.grpc.pb.h"
#include "common/telemetry/refusal_log.h"
#include "router/requests/limits.h"
#include "router/worker_link/worker_events.h"

namespace bfio::router {

class WorkerLinkService final : public v1::WorkerLink::CallbackService {
 public:
  // With `bind_worker_id` a worker may only say the worker_id that its certificate names. `limits` bound the
  // requests that workers bring of an earlier router.
  WorkerLinkService(WorkerHandler* handler, bool bind_worker_id, const RequestLimits& limits)
      : handler_(handler), bind_worker_id_(bind_worker_id), limits_(limits) {}

  grpc::ServerBidiReactor<v1::WorkerMessage, v1::RouterMessage>* Attach(
      grpc::CallbackServerContext* context) override;

 private:
  WorkerHandler* const handler_;
  const bool bind_worker_id_;
  const RequestLimits limits_;
  std::atomic<MemberId> next_member_{1};
  RefusalLog refusals_;
};

}  // namespace bfio::router

#endif  // BFIO_ROUTER_WORKER_LINK_WORKER_LINK_SERVICE_H_
