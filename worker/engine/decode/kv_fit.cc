#include "worker/engine/decode/kv_fit.h"

namespace bfio::worker {

int64_t MostKvTokens(int64_t most, int64_t capacity, KvBytes bytes) {
  if (bytes(most) <= capacity) return most;
  int64_t fits = 0, too_many = most;
  while (too_many - fits > 1) {
    const int64_t tokens = fits + (too_many - fits) / 2;
    (bytes(tokens) <= capacity ? fits : too_many) = tokens;
  }
  return fits;
}

std::optional<int64_t> FitKvTokens(const DecodeOptions& options, bool fewer, int64_t capacity,
                                   KvBytes bytes) {
  const int64_t asked = options.limits.kv_tokens;
  const int64_t most = MostKvTokens(asked, capacity, bytes);
  if (most == asked) return asked;
  if (!fewer || most < int64_t{options.limits.slots} * options.page_tokens) return std::nullopt;
  return most;
}

}  // namespace bfio::worker
