// Checks that every engine makes before it admits a request. Pure functions.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "worker/engine/engine.h"

namespace bfio::worker {

// KV tokens that a request may need in total. The last token's KV is never written.
inline int64_t ReservedKvTokens(const SequenceRequest& request) {
  return request.prompt_length + request.max_new_tokens - 1;
}

// KV tokens that are reserved on admission.
inline int64_t FirstKvTokens(const SequenceRequest& request) {
  return request.kv_on_demand ? request.prompt_length : ReservedKvTokens(request);
}

// INVALID_ARGUMENT, naming the field and the limit, when the request can never run on an engine with these
// limits.
absl::Status CheckRequest(const SequenceRequest& request, const EngineLimits& limits);

// INVALID_ARGUMENT, naming the flag, when a limit is out of range.
absl::Status CheckLimits(const EngineLimits& limits);

}  // namespace bfio::worker
