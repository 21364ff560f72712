// bfio.v1.WorkerLink: where bfio's workers attach.
//
// Purpose: a call is accepted by its certificate (TLS) before any message of it is received; one that does
// not say hello in time is closed. Threads: methods run on gRPC's threads and never block. The handler
// outlives the server that the service is registered with.
#ifndef BFIO_ROUTER_WORKER_LINK_WORKER_LINK_SERVICE_H_
#define BFIO_ROUTER_WORKER_LINK_WORKER_LINK_SERVICE_H_

#include <grpcpp/grpcpp.h>

#include <atomic>

#include "bfio/v1/worker.pb.h"
#include "common/net/authenticator.h"
#include "common/net/call_service.h"
#include "common/telemetry/refusal_log.h"
#include "router/requests/limits.h"
#include "router/worker_link/worker_events.h"
#include "router/worker_link/worker_session.h"

namespace bfio::router {

class WorkerLinkService final : public CallService {
 public:
  // With `bind_worker_id` a worker may only say the worker_id that its certificate names. `limits` bound the
  // requests that workers bring of an earlier router.
  // `authenticator` is notified of callers; may be null. `messages`: of the streams' hellos.
  WorkerLinkService(WorkerHandler* handler, bool bind_worker_id, const RequestLimits& limits,
                    Authenticator* authenticator = nullptr, FirstMessages::Limits messages = {});

  FirstMessages::Counts messages() const { return bounds_.first_messages.counts(); }
  // Streams now.
  int64_t sessions() const { return bounds_.open.load(std::memory_order_relaxed); }
  // Of messages that the handler has not dealt with, encoded.
  int64_t unconsumed_bytes() const { return bounds_.unconsumed_bytes.load(std::memory_order_relaxed); }
  // Of messages to workers that wait to be written, encoded.
  int64_t queued_bytes() const { return bounds_.queued_bytes.load(std::memory_order_relaxed); }

 private:
  grpc::ServerBidiReactor<v1::WorkerMessage, v1::RouterMessage>* Attach(grpc::CallbackServerContext* context);

  SessionBounds bounds_;
  Authenticator* const authenticator_;
  WorkerHandler* const handler_;
  const bool bind_worker_id_;
  const RequestLimits limits_;
  std::atomic<MemberId> next_member_{1};
  RefusalLog refusals_;
};

}  // namespace bfio::router

#endif  // BFIO_ROUTER_WORKER_LINK_WORKER_LINK_SERVICE_H_
