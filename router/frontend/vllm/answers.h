// What the router says of itself to a gateway: as one engine of data-parallel size 1.
//
// Purpose: the load of all ranks together, and the model. Pure; any thread.
#ifndef BFIO_ROUTER_FRONTEND_VLLM_ANSWERS_H_
#define BFIO_ROUTER_FRONTEND_VLLM_ANSWERS_H_

#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "engines/smg_common.pb.h"
#include "engines/vllm.pb.h"
#include "router/frontend/request_handler.h"
#include "router/frontend/tokenizer/model_files.h"

namespace bfio::router::vllm {

namespace pb = ::vllm::grpc::engine;
namespace common_pb = ::smg::grpc::common;

// `model` may be null: nothing is known of it but its name.
pb::GetModelInfoResponse ModelInfo(const std::string& name, const ModelFiles* model, const Serving& serving);
pb::GetServerInfoResponse ServerInfo(const Loads& loads, absl::Duration uptime);
pb::GetLoadsResponse LoadsResponse(const Loads& loads);
// Without `sample`, which counts the records of a stream.
common_pb::EngineLoad LoadRecord(const Loads& loads);

}  // namespace bfio::router::vllm

#endif  // BFIO_ROUTER_FRONTEND_VLLM_ANSWERS_H_
