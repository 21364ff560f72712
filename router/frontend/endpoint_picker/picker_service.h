// Envoy's external processor as an endpoint picker (Gateway API Inference Extension, proposal 004): Envoy, or
// a gateway built on it, asks for each HTTP request to which engine it goes. The stream is held until the
// request has a place, so the rank is chosen as late as at every other edge; tokens do not pass through the
// router. A second filter in observability_mode may show when requests end: a stream on which the response
// depends (FULL_DUPLEX_STREAMED) then ends with the choice. Threads: methods run on gRPC's threads and never
// block. The handler outlives the server with which the service is registered.
#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/base/fair_share.h"
#include "common/base/mutex.h"
#include "common/net/authenticator.h"
#include "common/net/call_service.h"
#include "common/net/first_messages.h"
#include "router/frontend/request_handler.h"
#include "router/requests/limits.h"

namespace bfio::router::picker {

// A message with a body of kMaxBodyBytes.
inline constexpr int kMaxMessageBytes = 17 << 20;
inline constexpr char kServiceName[] = "envoy.service.ext_proc.v3.ExternalProcessor";

struct PickerOptions {
  RequestLimits limits;
  // The request header that names the tenant. The route must remove a client's own.
  std::string tenant_header = "x-gateway-inference-fairness-id";
  // What all streams hold together until they have forwarded their requests, in bytes; a tenant has a share
  // of it. Each holds its body, and while that is coming a fixed part.
  int64_t held_bytes = int64_t{128} << 20;
};

class PickerCall;

class PickerService final : public CallService {
 public:
  // The fixed part of PickerOptions::held_bytes.
  static constexpr int64_t kStreamBytes = int64_t{16} << 10;

  PickerService(RequestHandler* handler, Authenticator* authenticator, PickerOptions options);

  // Number of open streams.
  int64_t streams() const;
  // Number of streams that observe a request without a place.
  int64_t observers() const;
  // Ends the streams whose requests have a place, without touching their responses.
  void Close();
  FirstMessages* first_messages() { return &messages_; }

 private:
  friend class PickerCall;

  PickerCall* Process(grpc::CallbackServerContext* context);
  void Forget(uint64_t id, absl::string_view observed);
  // The stream that observes the request with that x-request-id; null: none.
  void Observe(absl::string_view request_id, uint64_t id);
  std::shared_ptr<PickerCall> TakeObserver(absl::string_view request_id);
  // The router's request for what Envoy has sent. INVALID_ARGUMENT: the body cannot be read.
  absl::StatusOr<ClientRequest> RequestOf(const PickerCall& call) const;

  RequestHandler* const handler_;
  Authenticator* const authenticator_;
  const PickerOptions options_;
  // Request headers that are read.
  const std::vector<std::string> headers_;
  FirstMessages messages_;
  const std::shared_ptr<SharedCapacity> held_ = std::make_shared<SharedCapacity>(options_.held_bytes);
  mutable Mutex mutex_;
  absl::flat_hash_map<uint64_t, std::weak_ptr<PickerCall>> calls_ ABSL_GUARDED_BY(mutex_);
  // By x-request-id, which clients may repeat.
  std::multimap<std::string, uint64_t, std::less<>> observers_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace bfio::router::picker
