// Bound of a client's message, by its prompt and tokens. Pure.
#ifndef BFIO_ROUTER_FRONTEND_MESSAGE_BYTES_H_
#define BFIO_ROUTER_FRONTEND_MESSAGE_BYTES_H_

#include <algorithm>
#include <cstdint>

#include "router/requests/limits.h"

namespace bfio::router {

inline int MaxClientMessageBytes(const RequestLimits& limits) {
  // A token id takes up to 5 bytes, and a resume also sends the tokens that it has received. The bound of the
  // other fields is generous.
  constexpr int64_t kBytesPerToken = 5, kOtherFields = 64 << 10, kMost = 1 << 30;
  const int64_t tokens = int64_t{limits.max_prompt_tokens} + limits.max_new_tokens;
  return static_cast<int>(std::min(kBytesPerToken * tokens + kOtherFields, kMost));
}

}  // namespace bfio::router

#endif  // BFIO_ROUTER_FRONTEND_MESSAGE_BYTES_H_
