// vllm.grpc.engine.VllmEngine, as gateways call it (router/frontend/gateway/gateway_service.h).
#ifndef BFIO_ROUTER_FRONTEND_VLLM_VLLM_SERVICE_H_
#define BFIO_ROUTER_FRONTEND_VLLM_VLLM_SERVICE_H_

#include "router/frontend/gateway/gateway_service.h"
#include "router/frontend/vllm/wire.h"

namespace bfio::router::vllm {

using VllmService = gateway::GatewayService<Wire>;

}  // namespace bfio::router::vllm

namespace bfio::router::gateway {

extern template class GenerateStream<vllm::Wire>;
extern template class GatewayService<vllm::Wire>;

}  // namespace bfio::router::gateway

#endif  // BFIO_ROUTER_FRONTEND_VLLM_VLLM_SERVICE_H_
