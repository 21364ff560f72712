// Lowers the number of tokens in a rank's KV cache to what fits in memory. One rule for all engines. A device
// reports how many bytes a cache of a given number of tokens takes, with all memory that grows with it, and
// how many bytes are free. Threads: pure functions.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/functional/function_ref.h"
#include "worker/engine/decode/decode_engine.h"

namespace bfio::worker {

// Bytes that a cache of `tokens` tokens takes. Must grow with `tokens`.
using KvBytes = absl::FunctionRef<int64_t(int64_t tokens)>;

// The largest number of tokens, at most `most`, that takes no more than `capacity` bytes; 0 when not even one
// token fits.
int64_t MostKvTokens(int64_t most, int64_t capacity, KvBytes bytes);

// options.limits.kv_tokens if those fit in `capacity` bytes; otherwise, if `fewer` is set, as many as fit.
// Nothing if they do not fit, or if the cache would have less than one page per slot.
std::optional<int64_t> FitKvTokens(const DecodeOptions& options, bool fewer, int64_t capacity, KvBytes bytes);

}  // namespace bfio::worker
