// Requests of gateways that speak to vLLM, and their tokenizer files.
#include "engines/vllm.pb.h"
#include "router/frontend/tokenizer/token_text.h"
#include "tests/fuzz/gateway_request.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  vllm::grpc::engine::GenerateRequest message;
  if (bfio::fuzz::Accepted(bfio::router::gateway::VllmProtocol(), data, size, message))
    bfio::fuzz::Check(!message.sampling_params().has_prompt_logprobs(), "no unsupported field is accepted");
  const auto text = bfio::router::TokenText::Parse(bfio::fuzz::Text(data, size));
  if (text.ok()) {
    for (uint32_t token = 0; token <= text->size() && token < 1000; ++token) (void)text->Of(token, true);
  }
  return 0;
}
