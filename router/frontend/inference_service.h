// bfio.v1.Inference: what clients call, on the callback API. Authenticates by the headers, before any message
// is received; then receives, checks and converts. Threads: methods run on gRPC's threads and never block.
// Handler and authenticator outlive the server that the service is registered with.
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "bfio/v1/inference.pb.h"
#include "common/auth/ticket_keys.h"
#include "common/net/authenticator.h"
#include "common/net/call_service.h"
#include "common/net/first_messages.h"
#include "router/frontend/client_stream.h"
#include "router/frontend/request_handler.h"
#include "router/frontend/resume_tickets.h"
#include "router/requests/limits.h"

namespace bfio::router {

// Random values and signatures of the edge.
struct ClientSecrets {
  // Ids for requests that come without one. They reveal neither the number of other requests nor the time.
  std::function<std::string()> new_request_id = [] { return absl::StrCat("bfio-", RandomId()); };
  ResumeTickets tickets;
};

class InferenceService final : public CallService {
 public:
  // `messages` receives the calls' first messages; it outlives the server, too.
  InferenceService(RequestHandler* handler, Authenticator* authenticator, FirstMessages* messages,
                   const RequestLimits& request_limits, const StreamLimits& stream_limits,
                   ClientSecrets secrets = {});

  // Number of open Generate calls.
  int64_t streams() const { return streams_.load(std::memory_order_relaxed); }

 private:
  using AbortCall = UnaryCall<v1::AbortRequest, v1::AbortResponse>;
  using LoadsCall = UnaryCall<v1::GetLoadsRequest, v1::GetLoadsResponse>;

  ClientStream* Generate(grpc::CallbackServerContext* context);
  AbortCall* Abort(grpc::CallbackServerContext* context);
  LoadsCall* GetLoads(grpc::CallbackServerContext* context);

  // INVALID_ARGUMENT, PERMISSION_DENIED, or the handler's error.
  absl::Status Submit(v1::GenerateRequest request, const Caller& caller, absl::Time deadline,
                      const std::shared_ptr<ClientStream>& stream);

  RequestHandler* const handler_;
  Authenticator* const authenticator_;
  FirstMessages* const messages_;
  const RequestLimits request_limits_;
  const StreamLimits stream_limits_;
  const ClientSecrets secrets_;
  std::atomic<int64_t> streams_{0};
};

}  // namespace bfio::router
