// Requests of gateways that speak to SGLang: every accepted request is within the limits.
#include "engines/sglang.pb.h"
#include "google/protobuf/stubs/logging.h"
#include "router/frontend/sglang/generate_request.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const google::protobuf::LogSilencer quiet;
  namespace gateway = bfio::router::gateway;
  namespace sglang = bfio::router::sglang;
  using bfio::fuzz::Check;
  sglang::pb::GenerateRequest message;
  if (!message.ParseFromArray(data, static_cast<int>(size))) return 0;
  gateway::RequestContext context;
  context.max_sequence_tokens = 5000;
  const auto converted = sglang::Convert(message, "tenant", context);
  if (!converted.ok()) return 0;
  const bfio::router::ClientRequest& request = converted->request;
  Check(request.prompt_tokens == request.prompt.size() && request.prompt_tokens >= 1 &&
            request.prompt_tokens <= context.limits.max_prompt_tokens,
        "the prompt is within its limit");
  Check(request.max_new_tokens >= 1 && request.max_new_tokens <= context.limits.max_new_tokens,
        "the output is within its limit");
  Check(request.request_id.size() <= context.limits.max_id_bytes, "the id is within its limit");
  Check(converted->outputs >= 1 && converted->outputs <= gateway::kMaxOutputs,
        "the number of outputs is within its limit");
  Check(converted->stops.size() <= gateway::kMaxStops, "the stops are within their limit");
  for (const std::string& stop : converted->stops)
    Check(!stop.empty() && stop.size() <= gateway::kMaxStopBytes, "no stop is empty or long");
  Check(!message.return_logprob() && message.sampling_params().min_p() == 0 &&
            !message.sampling_params().has_custom_params(),
        "nothing that no engine honours gets through");
  return 0;
}
