// An SGLang server as an engine: sglang.grpc.scheduler.SglangScheduler, used as gateways use it.
//
// Purpose, ownership and threads: those of protocol/protocol_client.h.
#ifndef BFIO_ROUTER_ENGINE_LINK_SGLANG_SGLANG_CLIENT_H_
#define BFIO_ROUTER_ENGINE_LINK_SGLANG_SGLANG_CLIENT_H_

#include <memory>
#include <string>

#include "router/engine_link/engine_client.h"

namespace bfio::router::sglang {

// `server` is HOST:PORT. `pinned`: requests run on the rank that they name; otherwise the server is described
// as one rank (EngineDescription::joined_ranks). Connects lazily.
std::unique_ptr<EngineClient> NewSglangClient(const std::string& server, bool pinned);

}  // namespace bfio::router::sglang

#endif  // BFIO_ROUTER_ENGINE_LINK_SGLANG_SGLANG_CLIENT_H_
