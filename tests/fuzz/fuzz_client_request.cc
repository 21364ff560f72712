// What a client sends: whatever passes the door is within the limits.
#include "bfio/v1/admin.pb.h"
#include "google/protobuf/stubs/logging.h"
#include "router/worker_link/convert.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const google::protobuf::LogSilencer quiet;
  namespace v1 = bfio::v1;
  v1::GenerateRequest request;
  if (request.ParseFromArray(data, static_cast<int>(size))) {
    const bfio::router::RequestLimits limits;
    if (bfio::router::CheckGenerate(request, limits).ok()) {
      // Who comes back may say nothing but his id.
      const bool bare =
          request.has_resume_from_index() && request.prompt_case() == v1::GenerateRequest::PROMPT_NOT_SET;
      const uint32_t prompt = bfio::router::PromptTokens(request);
      bfio::fuzz::Check(bare || (prompt >= 1 && prompt <= limits.max_prompt_tokens),
                        "the prompt is within its limit");
      bfio::fuzz::Check(
          bare || (request.max_new_tokens() >= 1 && request.max_new_tokens() <= limits.max_new_tokens),
          "the output is within its limit");
      bfio::fuzz::Check(request.tenant().size() <= limits.max_id_bytes &&
                            request.request_id().size() <= limits.max_id_bytes,
                        "ids are within their limit");
    }
  }
  v1::PolicySetting setting;
  if (setting.ParseFromArray(data, static_cast<int>(size))) {
    (void)bfio::router::ConvertPolicy(setting, bfio::core::PolicyOptions());
  }
  return 0;
}
