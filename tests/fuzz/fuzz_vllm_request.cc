// Requests of gateways: every accepted request is within the limits. Also invalid tokenizers.
#include "engines/vllm.pb.h"
#include "google/protobuf/stubs/logging.h"
#include "router/frontend/tokenizer/token_text.h"
#include "router/frontend/vllm/generate_request.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const google::protobuf::LogSilencer quiet;
  namespace gateway = bfio::router::gateway;
  namespace vllm = bfio::router::vllm;
  using bfio::fuzz::Check;
  vllm::pb::GenerateRequest message;
  if (message.ParseFromArray(data, static_cast<int>(size))) {
    gateway::RequestContext context;
    context.max_sequence_tokens = 5000;
    const auto converted = vllm::Convert(message, "tenant", context);
    if (converted.ok()) {
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
      Check(request.sampling.logprobs.value_or(0) <= context.limits.max_logprobs,
            "the number of log-probabilities is within its limit");
      Check(!message.sampling_params().has_prompt_logprobs() && message.sampling_params().min_p() == 0,
            "nothing that no engine honours gets through");
    }
  }
  const auto text = bfio::router::TokenText::Parse(bfio::fuzz::Text(data, size));
  if (text.ok()) {
    for (uint32_t token = 0; token <= text->size() && token < 1000; ++token) (void)text->Of(token, true);
  }
  return 0;
}
