// sglang.grpc.scheduler.SglangScheduler as gateways call it (router/frontend/gateway/gateway_service.h): its
// messages, and its differences from other protocols.
//
// Pure; any thread.
#ifndef BFIO_ROUTER_FRONTEND_SGLANG_SGLANG_SERVICE_H_
#define BFIO_ROUTER_FRONTEND_SGLANG_SGLANG_SERVICE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "engines/sglang.pb.h"
#include "router/frontend/gateway/answers.h"
#include "router/frontend/gateway/gateway_service.h"
#include "router/frontend/sglang/generate_request.h"

namespace bfio::router::sglang {

struct Wire {
  static constexpr char kName[] = "sglang.grpc.scheduler.SglangScheduler";
  // A chunk's completion_tokens count the whole output so far.
  static constexpr bool kChunksCountAll = true;
  // A token that ends an output is named even if the request does not list it (end of sequence).
  static constexpr bool kNamesEos = true;

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
    return sglang::Convert(std::move(request), std::move(tenant), context);
  }
  static void SetRequestId(const std::string& id, GenerateResponse& response) { response.set_request_id(id); }

  static std::vector<std::string> AbortedIds(const AbortRequest& request) { return {request.request_id()}; }
  static AbortResponse Aborted(bool found);

  static GetServerInfoResponse ServerInfo(const Loads& loads, gateway::RankView view, absl::Duration uptime,
                                          const gateway::EngineFacts& facts);
  static absl::StatusOr<GetLoadsResponse> LoadsResponse(const Loads& loads, gateway::RankView view,
                                                        std::optional<int32_t> rank);
};

using SglangService = gateway::GatewayService<Wire>;

}  // namespace bfio::router::sglang

namespace bfio::router::gateway {

extern template class GenerateStream<sglang::Wire>;
extern template class GatewayService<sglang::Wire>;

}  // namespace bfio::router::gateway

#endif  // BFIO_ROUTER_FRONTEND_SGLANG_SGLANG_SERVICE_H_
