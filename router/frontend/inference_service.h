// bfio.v1.Inference: what clients call, on the callback API.
//
// Purpose: authenticates, checks and converts; no state of its own. Threads: methods run on gRPC's threads
// and never block. Handler and authenticator outlive the server that the service is registered with.
#ifndef BFIO_ROUTER_FRONTEND_INFERENCE_SERVICE_H_
#define BFIO_ROUTER_FRONTEND_INFERENCE_SERVICE_H_

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "bfio/v1/inference.grpc.pb.h"
#include "common/auth/ticket_keys.h"
#include "common/net/authenticator.h"
#include "router/frontend/client_stream.h"
#include "router/frontend/request_handler.h"
#include "router/frontend/resume_tickets.h"
#include "router/requests/limits.h"

namespace bfio::router {

// What the edge draws and signs.
struct ClientSecrets {
  // Ids for requests that come without one. They count nothing: neither others' requests nor time shows in
  // them.
  std::function<std::string()> new_request_id = [] { return absl::StrCat("bfio-", RandomId()); };
  ResumeTickets tickets;
};

class InferenceService final : public v1::Inference::CallbackService {
 public:
  InferenceService(RequestHandler* handler, Authenticator* authenticator, const RequestLimits& request_limits,
                   const StreamLimits& stream_limits, ClientSecrets secrets = {})
      : handler_(handler),
        authenticator_(authenticator),
        request_limits_(request_limits),
        stream_limits_(stream_limits),
        secrets_(std::move(secrets)) {}

  grpc::ServerWriteReactor<v1::GenerateResponse>* Generate(grpc::CallbackServerContext* context,
                                                           const v1::GenerateRequest* request) override;
  grpc::ServerUnaryReactor* Abort(grpc::CallbackServerContext* context, const v1::AbortRequest* request,
                                  v1::AbortResponse* response) override;
  grpc::ServerUnaryReactor* GetLoads(grpc::CallbackServerContext* context, const v1::GetLoadsRequest* request,
                                     v1::GetLoadsResponse* response) override;

 private:
  // INVALID_ARGUMENT, UNAUTHENTICATED, PERMISSION_DENIED, or what the handler says.
  absl::Status Submit(const grpc::CallbackServerContext& context, const v1::GenerateRequest& request,
                      std::string request_id, core::RequestId id, std::shared_ptr<ClientStream> stream);

  RequestHandler* const handler_;
  Authenticator* const authenticator_;
  const RequestLimits request_limits_;
  const StreamLimits stream_limits_;
  const ClientSecrets secrets_;
};

}  // namespace bfio::router

#endif  // BFIO_ROUTER_FRONTEND_INFERENCE_SERVICE_H_
