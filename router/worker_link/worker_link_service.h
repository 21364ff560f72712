// The service bfio.v1.WorkerLink, to which bfio's workers attach.
//
// Purpose: a call is authorized by its certificate (TLS) before any message of it is received; a call without
// a hello in time is closed. Threads: methods run on gRPC's threads and never block. The handler outlives the
// server with which the service is registered.
#ifndef BFIO_ROUTER_WORKER_LINK_WORKER_LINK_SERVICE_H_
#define BFIO_ROUTER_WORKER_LINK_WORKER_LINK_SERVICE_H_

#include <grpcpp/grpcpp.h>

#include <atomic>

#include "bfio/v1/worker.pb.h"
#include "common/net/authenticator.h"
#include "common/net/call_service.h"
#include "common/telemetry/refusal_log.h"
#include "router/group/worker_events.h"
#include "router/requests/limits.h"
#include "router/worker_link/tokenizer_upload.h"
#include "router/worker_link/worker_session.h"

namespace bfio::router {

class WorkerLinkService final : public CallService {
 public:
  // `bind_worker_id`: a worker's worker_id must be a name in its certificate. `limits`: for requests that
  // workers hold from an earlier router. `authenticator` is notified of callers; may be null. `messages`:
  // limits for the streams' first messages. `tokenizers`: receives what workers offer.
  WorkerLinkService(WorkerHandler* handler, bool bind_worker_id, const RequestLimits& limits,
                    Authenticator* authenticator = nullptr, FirstMessages::Limits messages = {},
                    TokenizerReceiver tokenizers = {});

  FirstMessages::Counts messages() const { return bounds_.first_messages.counts(); }
  // Number of open streams.
  int64_t sessions() const { return bounds_.open.load(std::memory_order_relaxed); }
  // Encoded bytes of messages that the handler has not handled yet.
  int64_t unconsumed_bytes() const { return bounds_.unconsumed_bytes.load(std::memory_order_relaxed); }
  // Encoded bytes of messages to workers that wait to be written.
  int64_t queued_bytes() const { return bounds_.queued_bytes.load(std::memory_order_relaxed); }

 private:
  grpc::ServerBidiReactor<v1::WorkerMessage, v1::RouterMessage>* Attach(grpc::CallbackServerContext* context);
  TokenizerUpload* OfferTokenizer(grpc::CallbackServerContext* context);

  SessionBounds bounds_;
  Authenticator* const authenticator_;
  WorkerHandler* const handler_;
  const bool bind_worker_id_;
  const RequestLimits limits_;
  std::atomic<MemberId> next_member_{1};
  RefusalLog refusals_;
  const TokenizerReceiver tokenizers_;
  std::atomic<int64_t> uploads_{0};
};

}  // namespace bfio::router

#endif  // BFIO_ROUTER_WORKER_LINK_WORKER_LINK_SERVICE_H_
