// sglang.grpc.scheduler.SglangScheduler, as gateways call it (router/frontend/gateway/gateway_service.h).
#ifndef BFIO_ROUTER_FRONTEND_SGLANG_SGLANG_SERVICE_H_
#define BFIO_ROUTER_FRONTEND_SGLANG_SGLANG_SERVICE_H_

#include "router/frontend/gateway/gateway_service.h"
#include "router/frontend/sglang/wire.h"

namespace bfio::router::sglang {

using SglangService = gateway::GatewayService<Wire>;

}  // namespace bfio::router::sglang

namespace bfio::router::gateway {

extern template class GenerateStream<sglang::Wire>;
extern template class GatewayService<sglang::Wire>;

}  // namespace bfio::router::gateway

#endif  // BFIO_ROUTER_FRONTEND_SGLANG_SGLANG_SERVICE_H_
