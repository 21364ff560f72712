// Calls of SGLang's scheduler API in the way that a gateway makes them.
#ifndef BFIO_TESTS_TESTING_SGLANG_CALLS_H_
#define BFIO_TESTS_TESTING_SGLANG_CALLS_H_

#include "absl/time/time.h"
#include "engines/sglang.grpc.pb.h"
#include "tests/testing/gateway_calls.h"

namespace bfio::testing::sglang {

namespace pb = ::sglang::grpc::scheduler;
namespace common_pb = ::smg::grpc::common;

using Outputs = OutputsOf<pb::GenerateResponse>;
using Call = CallOf<pb::SglangScheduler::Stub, pb::GenerateRequest, pb::GenerateResponse>;

// A greedy request.
inline pb::GenerateRequest Request(uint32_t output, bool stream = true) {
  pb::GenerateRequest request;
  for (uint32_t id = 1; id <= 7; ++id) request.mutable_tokenized()->add_input_ids(id);
  pb::SamplingParams& sampling = *request.mutable_sampling_params();
  sampling.set_max_new_tokens(output);
  sampling.set_ignore_eos(true);
  request.set_stream(stream);
  return request;
}

inline std::unique_ptr<pb::SglangScheduler::Stub> StubAt(const std::string& address) {
  return pb::SglangScheduler::NewStub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
}

inline Outputs Generate(pb::SglangScheduler::Stub& stub, const pb::GenerateRequest& request) {
  return Call(stub, request, absl::Seconds(60)).End();
}

}  // namespace bfio::testing::sglang

#endif  // BFIO_TESTS_TESTING_SGLANG_CALLS_H_
