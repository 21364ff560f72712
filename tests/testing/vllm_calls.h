// Calls of vLLM's engine API in the way that a gateway makes them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "tests/testing/gateway_calls.h"

namespace bfio::testing {

namespace pb = ::vllm::grpc::engine;

using Outputs = OutputsOf<Vllm>;
using Call = CallOf<Vllm>;

// A request that samples with a seed.
inline pb::GenerateRequest Request(uint32_t output, bool stream = true) {
  pb::GenerateRequest request = GreedyRequest<Vllm>(output, stream);
  request.mutable_sampling_params()->set_temperature(1);
  request.mutable_sampling_params()->set_seed(5);
  return request;
}

inline std::unique_ptr<pb::VllmEngine::Stub> StubAt(const std::string& address) {
  return StubOf<Vllm>(address);
}

inline Outputs Generate(pb::VllmEngine::Stub& stub, const pb::GenerateRequest& request) {
  return GenerateAs<Vllm>(stub, request);
}

}  // namespace bfio::testing
