// vllm.grpc.engine.VllmEngine: what gateways call, on the callback API.
//
// Purpose: the router as one vLLM engine, whose balancing among its ranks is the router's. Authenticates by
// the headers, before any message is received; then receives, checks and converts. The tenant is that of the
// caller's token, or of the header "bfio-tenant"; the protocol has no field for it. Threads: methods run on
// gRPC's threads and never block. Handler and authenticator outlive the server that the service is registered
// with.
#ifndef BFIO_ROUTER_FRONTEND_VLLM_VLLM_SERVICE_H_
#define BFIO_ROUTER_FRONTEND_VLLM_VLLM_SERVICE_H_

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "common/net/authenticator.h"
#include "common/net/call_service.h"
#include "common/net/first_messages.h"
#include "common/net/unary_call.h"
#include "engines/vllm.pb.h"
#include "router/frontend/request_handler.h"
#include "router/frontend/tokenizer/model_files.h"
#include "router/frontend/vllm/generate_request.h"
#include "router/frontend/vllm/generate_stream.h"
#include "router/frontend/vllm/load_feed.h"
#include "router/frontend/vllm/tokenizer_stream.h"
#include "router/requests/limits.h"

namespace bfio::router::vllm {

struct VllmOptions {
  RequestLimits request_limits;
  StreamLimits stream_limits;
  // Under which gateways offer the model.
  std::string model_name;
  // Its files; null: only the gateway has them.
  std::shared_ptr<const ModelFiles> model;
  // Ids for requests that come without one.
  std::function<std::string()> new_request_id;
};

class VllmService final : public CallService {
 public:
  static constexpr char kName[] = "vllm.grpc.engine.VllmEngine";
  // Requests that one Abort may name.
  static constexpr int kMaxAborts = 256;

  // `messages` receives the calls' first messages; it outlives the server, too.
  VllmService(RequestHandler* handler, Authenticator* authenticator, FirstMessages* messages,
              VllmOptions options);

  // Generate calls now.
  int64_t streams() const { return streams_.load(std::memory_order_relaxed); }
  // Ends the streams that would not end by themselves.
  void Close() { feed_.Close(); }

 private:
  struct Caller {
    // Whose token it is, where tokens are asked for.
    std::optional<std::string> name;
    std::string peer;
    // Of the header; empty: none.
    std::string tenant;
  };
  using AbortCall = UnaryCall<pb::AbortRequest, pb::AbortResponse>;
  // A tenant and a request_id.
  using Name = std::pair<std::string, std::string>;

  // UNAUTHENTICATED, or INVALID_ARGUMENT for a header that is no tenant's name.
  absl::StatusOr<Caller> CallerOf(const grpc::CallbackServerContext& context);
  void AddInformation();

  GenerateStream* Generate(grpc::CallbackServerContext* context);
  // INVALID_ARGUMENT, PERMISSION_DENIED, or what the handler says.
  absl::Status Submit(pb::GenerateRequest request, const Caller& caller,
                      const std::shared_ptr<GenerateStream>& stream);
  absl::Status SubmitOutputs(ConvertedRequest converted, const std::shared_ptr<GenerateStream>& stream);

  AbortCall* Abort(grpc::CallbackServerContext* context);
  void AbortAll(const std::shared_ptr<AbortCall>& call, const pb::AbortRequest& request,
                const Caller& caller);
  // The names of a request's outputs that have not ended, as far as the service knows.
  std::vector<std::string> OutputNames(const std::string& tenant, const std::string& request_id);
  // A request of several outputs.
  void Remember(const ClientRequest& request, const std::shared_ptr<GenerateStream>& stream);

  RequestHandler* const handler_;
  Authenticator* const authenticator_;
  FirstMessages* const messages_;
  const VllmOptions options_;
  const absl::Time started_;
  std::atomic<int64_t> streams_{0};
  LoadFeed feed_;

  Mutex mutex_;
  // Of requests with several outputs; those that are gone are swept now and then.
  absl::flat_hash_map<Name, std::weak_ptr<GenerateStream>> several_ ABSL_GUARDED_BY(mutex_);
  size_t sweep_at_ ABSL_GUARDED_BY(mutex_) = 64;
};

}  // namespace bfio::router::vllm

#endif  // BFIO_ROUTER_FRONTEND_VLLM_VLLM_SERVICE_H_
