// Calls of vLLM's engine API in the way that a gateway makes them.
#ifndef BFIO_TESTS_TESTING_VLLM_CALLS_H_
#define BFIO_TESTS_TESTING_VLLM_CALLS_H_

#include "absl/time/time.h"
#include "engines/vllm.grpc.pb.h"
#include "tests/testing/gateway_calls.h"

namespace bfio::testing {

namespace pb = ::vllm::grpc::engine;
namespace common_pb = ::smg::grpc::common;

using Outputs = OutputsOf<pb::GenerateResponse>;
using Call = CallOf<pb::VllmEngine::Stub, pb::GenerateRequest, pb::GenerateResponse>;

inline pb::GenerateRequest Request(uint32_t output, bool stream = true) {
  pb::GenerateRequest request;
  for (uint32_t id = 1; id <= 7; ++id) request.mutable_tokenized()->add_input_ids(id);
  pb::SamplingParams& sampling = *request.mutable_sampling_params();
  sampling.set_max_tokens(output);
  sampling.set_ignore_eos(true);
  sampling.set_seed(5);
  request.set_stream(stream);
  return request;
}

inline std::unique_ptr<pb::VllmEngine::Stub> StubAt(const std::string& address) {
  return pb::VllmEngine::NewStub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
}

inline Outputs Generate(pb::VllmEngine::Stub& stub, const pb::GenerateRequest& request) {
  return Call(stub, request, absl::Seconds(60)).End();
}

}  // namespace bfio::testing

#endif  // BFIO_TESTS_TESTING_VLLM_CALLS_H_
