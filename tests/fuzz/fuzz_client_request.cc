// Requests of clients: every accepted request is within the limits.
#include "google/protobuf/stubs/logging.h"
#include "router/admin/admin_service.h"
#include "router/frontend/inference_service.h"
#include "router/requests/check_request.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const google::protobuf::LogSilencer quiet;
  namespace v1 = bfio::v1;
  v1::GenerateRequest message;
  if (message.ParseFromArray(data, static_cast<int>(size))) {
    const bfio::router::RequestLimits limits;
    const auto request = bfio::router::ToClientRequest(message, limits);
    if (request.ok()) {
      // A client that resumes may send only its request id.
      const bool bare = bfio::router::IsBareResume(*request);
      bfio::fuzz::Check(
          bare || (request->prompt_tokens >= 1 && request->prompt_tokens <= limits.max_prompt_tokens),
          "the prompt is within its limit");
      bfio::fuzz::Check(!request->has_prompt_ids() || request->prompt.size() == request->prompt_tokens,
                        "the prompt's length is that of its ids");
      bfio::fuzz::Check(
          bare || (request->max_new_tokens >= 1 && request->max_new_tokens <= limits.max_new_tokens),
          "the output is within its limit");
      bfio::fuzz::Check(
          request->tenant.size() <= limits.max_id_bytes && request->request_id.size() <= limits.max_id_bytes,
          "ids are within their limit");
    }
  }
  v1::PolicySetting setting;
  if (setting.ParseFromArray(data, static_cast<int>(size))) (void)bfio::router::ToPolicyChange(setting);
  return 0;
}
