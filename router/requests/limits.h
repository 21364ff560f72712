// Limits of one request and of one client's stream. Plain data.
#pragma once

#include <cstdint>

#include "absl/time/time.h"

namespace bfio::router {

// Checked by check_request.h.
struct RequestLimits {
  // Limits of prompt and output length, in tokens.
  uint32_t max_prompt_tokens = 131072;
  uint32_t max_new_tokens = 65536;
  uint32_t max_stop_ids = 64;
  // Limit of request_id, tenant and parent_id each, in bytes.
  uint32_t max_id_bytes = 128;
  int32_t max_abs_priority = 100;
  uint32_t max_resume_token_bytes = 128;
  // Bound of a request's alternatives per token with log-probabilities; as vLLM's default.
  uint32_t max_logprobs = 20;
  // Requests go to engines that keep the KV of prompts for later requests, so the blocks of prompts are named
  // (core::PrefixBlocks).
  bool name_prefixes = false;
};

// Limits for a client that does not read its tokens.
struct StreamLimits {
  // Undelivered tokens of one client; they are written together when it reads again.
  int64_t buffer_tokens = 16384;
  // How long a client may read nothing while tokens wait for it.
  absl::Duration timeout = absl::Seconds(30);
};

}  // namespace bfio::router
