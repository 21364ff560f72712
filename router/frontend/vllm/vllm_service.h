// vllm.grpc.engine.VllmEngine as gateways call it (router/frontend/gateway/gateway_service.h): its messages,
// and its differences from other protocols.
//
// Pure; any thread.
#ifndef BFIO_ROUTER_FRONTEND_VLLM_VLLM_SERVICE_H_
#define BFIO_ROUTER_FRONTEND_VLLM_VLLM_SERVICE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "engines/vllm.pb.h"
#include "router/frontend/gateway/answers.h"
#include "router/frontend/gateway/gateway_service.h"
#include "router/frontend/vllm/generate_request.h"

namespace bfio::router::vllm {

struct Wire {
  static constexpr char kName[] = "vllm.grpc.engine.VllmEngine";
  // A chunk's completion_tokens count only the chunk.
  static constexpr bool kChunksCountAll = false;
  // A token that ends an output is named only if the request lists it.
  static constexpr bool kNamesEos = false;

  using GenerateRequest = pb::GenerateRequest;
  using GenerateResponse = pb::GenerateResponse;
  using AbortRequest = pb::AbortRequest;
  using AbortResponse = pb::AbortResponse;
  using HealthCheckRequest = pb::HealthCheckRequest;
  using HealthCheckResponse = pb::HealthCheckResponse;
  using GetModelInfoRequest = pb::GetModelInfoRequest;
  using GetModelInfoResponse = pb::GetModelInfoResponse;
  using GetServerInfoRequest = pb::GetServerInfoRequest;
  using GetServerInfoResponse = pb::GetServerInfoResponse;
  using GetLoadsRequest = pb::GetLoadsRequest;
  using GetLoadsResponse = pb::GetLoadsResponse;

  static absl::StatusOr<gateway::ConvertedRequest> Convert(GenerateRequest request, std::string tenant,
                                                           const gateway::RequestContext& context) {
    return vllm::Convert(std::move(request), std::move(tenant), context);
  }
  // Responses do not name the request.
  static void SetRequestId(const std::string&, GenerateResponse&) {}

  static std::vector<std::string> AbortedIds(const AbortRequest& request) {
    return {request.request_ids().begin(), request.request_ids().end()};
  }
  // The answer does not tell whether the request was found.
  static AbortResponse Aborted(bool) { return {}; }

  static GetServerInfoResponse ServerInfo(const Loads& loads, gateway::RankView view, absl::Duration uptime,
                                          const gateway::EngineFacts& facts);
  static absl::StatusOr<GetLoadsResponse> LoadsResponse(const Loads& loads, gateway::RankView view,
                                                        std::optional<int32_t> rank) {
    return gateway::LoadsOf<GetLoadsResponse>(loads, view, rank);
  }
};

using VllmService = gateway::GatewayService<Wire>;

}  // namespace bfio::router::vllm

namespace bfio::router::gateway {

extern template class GenerateStream<vllm::Wire>;
extern template class GatewayService<vllm::Wire>;

}  // namespace bfio::router::gateway

#endif  // BFIO_ROUTER_FRONTEND_VLLM_VLLM_SERVICE_H_
