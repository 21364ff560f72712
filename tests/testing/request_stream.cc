#include "tests/testing/request_stream.h"

#include <utility>
#include <variant>

#include "absl/time/clock.h"

namespace bfio::testing {

v1::GenerateRequest SyntheticRequest(uint32_t prompt, uint32_t output) {
  v1::GenerateRequest request;
  request.set_prompt_length(prompt);
  request.set_max_new_tokens(output);
  request.set_ignore_eos(true);
  return request;
}

RequestStream::RequestStream(v1::Inference::Stub& stub, const v1::GenerateRequest& request,
                             RequestStreamOptions options)
    : reader_(
          std::make_shared<client::StreamReader>(request, absl::Now() + options.deadline, options.metadata)),
      result_(std::move(options.so_far)) {
  reader_->Start(stub);
}

RequestStream::~RequestStream() {
  Cancel();
  End();  // the caller may destroy the stub afterwards
}

bool RequestStream::Read() {
  if (ended_) return false;
  const auto taken = reader_->Take(absl::InfiniteDuration());
  if (const auto* status = std::get_if<grpc::Status>(&taken)) {
    ended_ = true;
    result_.status = *status;
    return false;
  }
  const auto& message = std::get<v1::GenerateResponse>(taken);
  result_.contiguous =
      result_.contiguous && message.first_index() == result_.tokens.size() && result_.finishes == 0;
  result_.tokens.insert(result_.tokens.end(), message.token_ids().begin(), message.token_ids().end());
  result_.logprobs.MergeFrom(message.logprobs());
  if (message.has_finish()) {
    ++result_.finishes;
    result_.finish = message.finish();
  }
  return true;
}

const GenerateResult& RequestStream::End() {
  while (Read()) {
  }
  return result_;
}

GenerateResult Generate(v1::Inference::Stub& stub, const v1::GenerateRequest& request,
                        absl::Duration deadline) {
  return RequestStream(stub, request, {.deadline = deadline}).End();
}

}  // namespace bfio::testing
