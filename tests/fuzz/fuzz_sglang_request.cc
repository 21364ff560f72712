// Requests of gateways that speak to SGLang.
#include "engines/sglang.pb.h"
#include "tests/fuzz/gateway_request.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  sglang::grpc::scheduler::GenerateRequest message;
  if (bfio::fuzz::Accepted(bfio::router::gateway::SglangProtocol(), data, size, message))
    bfio::fuzz::Check(!message.sampling_params().has_custom_params(), "no unsupported field is accepted");
  return 0;
}
