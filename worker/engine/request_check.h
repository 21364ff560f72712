// What every engine asks of a request before it takes it. Pure.
#ifndef BFIO_WORKER_ENGINE_REQUEST_CHECK_H_
#define BFIO_WORKER_ENGINE_REQUEST_CHECK_H_

#include <cstdint>

#include "absl/status/status.h"
#include "worker/engine/engine.h"

namespace bfio::worker {

// KV tokens that a request may need: the last token's is never written.
inline int64_t ReservedKvTokens(const SequenceRequest& request) {
  return request.prompt_length + request.max_new_tokens - 1;
}

// What is reserved for it when it is taken.
inline int64_t FirstKvTokens(const SequenceRequest& request) {
  return request.kv_on_demand ? request.prompt_length : ReservedKvTokens(request);
}

// INVALID_ARGUMENT, naming the field and the limit, when it can never run on an engine of these limits.
absl::Status CheckRequest(const SequenceRequest& request, const EngineLimits& limits);

// INVALID_ARGUMENT, naming the flag, when no engine could have these limits.
absl::Status CheckLimits(const EngineLimits& limits);

}  // namespace bfio::worker

#endif  // BFIO_WORKER_ENGINE_REQUEST_CHECK_H_
