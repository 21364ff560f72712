// A vLLM server as an engine: vllm.grpc.engine.VllmEngine, used as gateways use it.
//
// Purpose, ownership and threads: those of protocol/protocol_client.h.
#ifndef BFIO_ROUTER_ENGINE_LINK_VLLM_VLLM_CLIENT_H_
#define BFIO_ROUTER_ENGINE_LINK_VLLM_VLLM_CLIENT_H_

#include <memory>
#include <string>

#include "router/engine_link/engine_client.h"

namespace bfio::router::vllm {

// `server` is HOST:PORT. Connects lazily.
std::unique_ptr<EngineClient> NewVllmClient(const std::string& server);

}  // namespace bfio::router::vllm

#endif  // BFIO_ROUTER_ENGINE_LINK_VLLM_VLLM_CLIENT_H_
