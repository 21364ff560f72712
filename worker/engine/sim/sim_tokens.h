// The token stream of the sim engine: which token a request gets at which index. Pure.
//
// A token depends on the original prompt (its ids, or its length for synthetic load), the request's sampling
// seed and the index, and on nothing else: not on the handle, the worker, the engine's seed or the batch. So
// a replay, whose prompt is the original one plus the tokens already delivered, continues with exactly the
// tokens the first run would have made.
#ifndef BFIO_WORKER_ENGINE_SIM_SIM_TOKENS_H_
#define BFIO_WORKER_ENGINE_SIM_SIM_TOKENS_H_

#include <cstdint>

#include "worker/engine/engine.h"

namespace bfio::worker {

inline constexpr uint32_t kSimVocabulary = 32000;
inline constexpr uint32_t kSimEosToken = 2;
// Ids below are special (padding, start, end) and are never drawn as ordinary tokens.
inline constexpr uint32_t kSimFirstOrdinaryToken = 3;
// A prompt with this id has no finite logits, as with a broken row of an embedding: the request fails, alone.
inline constexpr uint32_t kSimPoisonToken = 0xffffffff;

// Names a request's token stream. REQUIRES: 0 <= first_index < prompt_length; prompt empty or of
// prompt_length ids.
uint64_t SimStreamKey(const SequenceRequest& request);

// The token at `index`; the end-of-sequence token with probability `eos_probability`.
uint32_t SimToken(uint64_t stream_key, int64_t index, double eos_probability);

}  // namespace bfio::worker

#endif  // BFIO_WORKER_ENGINE_SIM_SIM_TOKENS_H_
