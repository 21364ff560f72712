// Requests of gateways that speak to vLLM, or to SGLang: every accepted request is within the limits.
#include <cstdint>
#include <string>

#include "engines/sglang.pb.h"
#include "engines/vllm.pb.h"
#include "google/protobuf/stubs/logging.h"
#include "router/frontend/gateway/protocol.h"
#include "tests/fuzz/fuzz.h"

namespace {

namespace router = bfio::router;
using bfio::fuzz::Check;

// Whether `data` is a request that is accepted; then it is in `message`.
template <typename Request>
bool Accepted(const router::gateway::Protocol& protocol, const uint8_t* data, size_t size, Request& message) {
  if (!message.ParseFromArray(data, static_cast<int>(size))) return false;
  router::gateway::RequestContext context;
  context.max_sequence_tokens = 5000;
  const auto converted = protocol.Convert(message, "tenant", context);
  if (!converted.ok()) return false;
  const router::ClientRequest& request = converted->request;
  Check(request.prompt_tokens == request.prompt.size() && request.prompt_tokens >= 1 &&
            request.prompt_tokens <= context.limits.max_prompt_tokens,
        "the prompt is within its limit");
  Check(request.max_new_tokens >= 1 && request.max_new_tokens <= context.limits.max_new_tokens,
        "the output is within its limit");
  Check(request.request_id.size() <= context.limits.max_id_bytes, "the id is within its limit");
  Check(converted->outputs >= 1 && converted->outputs <= router::gateway::kMaxOutputs,
        "the number of outputs is within its limit");
  Check(converted->stops.size() <= router::gateway::kMaxStops, "the stops are within their limit");
  for (const std::string& stop : converted->stops)
    Check(!stop.empty() && stop.size() <= router::gateway::kMaxStopBytes, "no stop is empty or long");
  Check(request.sampling.logprobs.value_or(0) <= context.limits.max_logprobs,
        "the number of log-probabilities is within its limit");
  Check(message.sampling_params().min_p() == 0, "no unsupported field is accepted");
  return true;
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const google::protobuf::LogSilencer quiet;
  vllm::grpc::engine::GenerateRequest vllm;
  if (Accepted(router::gateway::VllmProtocol(), data, size, vllm))
    Check(!vllm.sampling_params().has_prompt_logprobs(), "no unsupported field is accepted");
  sglang::grpc::scheduler::GenerateRequest sglang;
  if (Accepted(router::gateway::SglangProtocol(), data, size, sglang))
    Check(!sglang.sampling_params().has_custom_params(), "no unsupported field is accepted");
  return 0;
}
