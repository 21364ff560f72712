// What a decision needs of a request in OpenAI's API: lengths, and the text with which its prompt begins.
// Engines check requests; here nothing is refused that an engine might accept, except what cannot be read.
// Pure; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "router/core/model/prefix_blocks.h"

namespace bfio::router::picker {

// Of a prompt's text per token, until the engines' own counts are known: an estimate for European languages.
inline constexpr int64_t kBytesPerToken = 4;
// A larger body is refused with 413. A prompt of a million tokens has some 4 MiB.
inline constexpr size_t kMaxBodyBytes = size_t{16} << 20;

struct OpenAiRequest {
  // Empty: not given.
  std::string model;
  // At least 1. Exact where the prompt is token ids, otherwise from its bytes.
  uint32_t prompt_tokens = 1;
  // Of one output; absent: not given.
  std::optional<uint32_t> max_tokens;
  // Outputs of the call, at least 1 (n, best_of).
  uint32_t outputs = 1;
  // It has one prompt and one output, and nothing in its answer is about the prompt: another engine may
  // compute it.
  bool one_prompt = false;
  // Blocks of the prompt's text, kBytesPerToken bytes counting as a token; null: too short.
  core::PrefixBlocks prefix;
};

// Whether requests to the path (":path", with or without a query) generate tokens.
bool Generates(absl::string_view path);

// Reads the body of a request to such a path: chat completions, completions or responses. INVALID_ARGUMENT:
// it is no JSON object, beyond the bounds of common/json, or as for CheckNoHandOff.
absl::StatusOr<OpenAiRequest> ReadOpenAiRequest(absl::string_view body);

// A body to any path. INVALID_ARGUMENT: it hands KV over (kv_transfer_params), or is an object that cannot be
// read.
absl::Status CheckNoHandOff(absl::string_view body);

}  // namespace bfio::router::picker
