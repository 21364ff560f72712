// How many tokens a rank's KV cache has where memory does not hold all that may be there.
//
// Purpose: the one rule of all engines. A device says how many bytes a cache of so many tokens takes, with
// all that grows with it, and how many there are for it. Threads: pure.
#ifndef BFIO_WORKER_ENGINE_DECODE_KV_FIT_H_
#define BFIO_WORKER_ENGINE_DECODE_KV_FIT_H_

#include <cstdint>
#include <optional>

#include "absl/functional/function_ref.h"
#include "worker/engine/decode/decode_engine.h"

namespace bfio::worker {

// Bytes for a cache of so many tokens. More for more tokens.
using KvBytes = absl::FunctionRef<int64_t(int64_t tokens)>;

// The most tokens, at most `most`, that take no more than `room` bytes. 0: not even one fits.
int64_t MostKvTokens(int64_t most, int64_t room, KvBytes bytes);

// options.limits.kv_tokens where these fit into `room` bytes; else, where `fewer` will do, as many as fit.
// Nothing where that is not possible, or the cache would have less than a page for each slot.
std::optional<int64_t> FitKvTokens(const DecodeOptions& options, bool fewer, int64_t room, KvBytes bytes);

}  // namespace bfio::worker

#endif  // BFIO_WORKER_ENGINE_DECODE_KV_FIT_H_
