// Clients of engines with the protocols that gateways use: vLLM's (vllm.grpc.engine.VllmEngine) and SGLang's
// (sglang.grpc.scheduler.SglangScheduler), used as gateways use them. Implements EngineClient for one server.
// Requests name the rank, unless the server chooses among its ranks itself: the router then treats them as
// one. Requests that are made here request a stream. A stream that breaks the protocol (more tokens than
// requested, another output than the first, counts that do not fit the tokens received; stream_counts.h) ends
// with DATA_LOSS. Messages after the end of an output are ignored. Ownership and threads: as EngineClient;
// gRPC's callbacks. A client may be destroyed while its calls are under way.
#pragma once

#include <memory>

#include "router/engine_link/engine_client.h"
#include "router/engine_link/engine_list.h"

namespace bfio::router {

// Both connect lazily. Without EngineAddress::pinned SGLang's server is described as one rank
// (EngineDescription::joined_ranks).
std::unique_ptr<EngineClient> NewVllmClient(const EngineAddress& engine);
std::unique_ptr<EngineClient> NewSglangClient(const EngineAddress& engine);

}  // namespace bfio::router
