// What a client asks for: the JSON of /v1/completions and /v1/chat/completions.
//
// Purpose: every field is taken over, refused by name, or without effect here and said so in docs/api.md.
// Pure.
#ifndef BFIO_TOOLS_OPENAI_COMPLETION_REQUEST_H_
#define BFIO_TOOLS_OPENAI_COMPLETION_REQUEST_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "bfio/v1/inference.pb.h"

namespace bfio::openai {

enum class Api { kCompletions, kChat };

struct ParseOptions {
  // Of /v1/models; a request that names another is refused.
  std::string model = "bfio";
  // Of a byte's token id.
  uint32_t byte_offset = 0;
  // Where the client sets no limit.
  uint32_t default_max_tokens = 256;
};

struct CompletionRequest {
  v1::GenerateRequest generate;
  bool stream = false;
  bool include_usage = false;
  // Adds the ids beside the text.
  bool return_token_ids = false;
  // Of the ids that end it, those that are not said in the text.
  std::vector<uint32_t> unsaid_stop_ids;
};

// INVALID_ARGUMENT, with a message that begins with the field's name, for what is wrong or not supported;
// NOT_FOUND for another model. Ranges that the router checks are left to it.
absl::StatusOr<CompletionRequest> ParseCompletionRequest(Api api, absl::string_view body,
                                                         const ParseOptions& options);

}  // namespace bfio::openai

#endif  // BFIO_TOOLS_OPENAI_COMPLETION_REQUEST_H_
