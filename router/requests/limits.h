// Bounds of one request and of one client's stream. Plain data.
#ifndef BFIO_ROUTER_REQUESTS_LIMITS_H_
#define BFIO_ROUTER_REQUESTS_LIMITS_H_

#include <cstdint>

#include "absl/time/time.h"

namespace bfio::router {

// Checked by check_request.h.
struct RequestLimits {
  // Prompt and output length, in tokens.
  uint32_t max_prompt_tokens = 131072;
  uint32_t max_new_tokens = 65536;
  uint32_t max_stop_ids = 64;
  // Bytes of request_id, of tenant and of parent_id.
  uint32_t max_id_bytes = 128;
  int32_t max_abs_priority = 100;
  uint32_t max_resume_token_bytes = 128;
};

// A client that does not take its tokens.
struct StreamLimits {
  // Tokens that wait for one client; they are written together as soon as it takes any.
  int64_t buffer_tokens = 16384;
  // How long a client may take none of what waits.
  absl::Duration timeout = absl::Seconds(30);
};

}  // namespace bfio::router

#endif  // BFIO_ROUTER_REQUESTS_LIMITS_H_
