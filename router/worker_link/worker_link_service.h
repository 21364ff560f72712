// The service bfio.v1.WorkerLink, to which bfio's workers attach. A call is authorized by its certificate
// (TLS) before any message of it is received; a call without a hello in time is closed. Threads: methods run
// on gRPC's threads and never block. The handler outlives the server with which the service is registered.
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <memory>

#include "bfio/v1/worker.pb.h"
#include "common/auth/ticket_keys.h"
#include "common/telemetry/line_limiter.h"
#include "router/group/worker_events.h"
#include "router/requests/limits.h"
#include "router/worker_link/tokenizer_upload.h"
#include "router/worker_link/worker_port_service.h"

namespace bfio::router {

class WorkerLinkService final : public WorkerPortService {
 public:
  // `bind_worker_id`: a worker's worker_id must be a name in its certificate. `limits`: for requests that
  // workers hold from an earlier router. `authenticator` is notified of callers; may be null. `messages`:
  // limits for the streams' first messages. `tokenizers`: receives what workers offer. `keys`: of
  // SessionChannel::Options.
  WorkerLinkService(WorkerHandler* handler, bool bind_worker_id, const RequestLimits& limits,
                    Authenticator* authenticator = nullptr, FirstMessages::Limits messages = {},
                    TokenizerReceiver tokenizers = {}, std::shared_ptr<const TicketKeys> keys = nullptr);

 private:
  CallReactor<v1::RouterMessage>* Attach(grpc::CallbackServerContext* context);
  TokenizerUpload* OfferTokenizer(grpc::CallbackServerContext* context);

  Authenticator* const authenticator_;
  WorkerHandler* const handler_;
  const bool bind_worker_id_;
  const RequestLimits limits_;
  const std::shared_ptr<const TicketKeys> keys_;
  AttachedWorkers attached_;
  std::atomic<MemberId> next_member_{1};
  RefusalLog refusals_;
  const TokenizerReceiver tokenizers_;
  const std::shared_ptr<SharedCapacity> uploads_ =
      std::make_shared<SharedCapacity>(TokenizerUpload::kMostAtOnce);
};

}  // namespace bfio::router
