// The token stream of the sim engine: which token a request gets at which index. Pure functions.
//
// A token depends only on the original prompt (its ids, or its length for synthetic load), the request's
// sampling seed and the index: not on the handle, the worker, the engine's seed or the batch. So a replay,
// whose prompt is the original one plus the delivered tokens, continues with exactly the tokens that the
// first run would have generated.
#ifndef BFIO_WORKER_ENGINE_SIM_SIM_TOKENS_H_
#define BFIO_WORKER_ENGINE_SIM_SIM_TOKENS_H_

#include <cstdint>

#include "worker/engine/engine.h"

namespace bfio::worker {

inline constexpr int32_t kSimVocabulary = 32000;
inline constexpr uint32_t kSimEosToken = 2;
// Smaller ids are special (padding, start, end) and are never drawn as ordinary tokens.
inline constexpr uint32_t kSimFirstOrdinaryToken = 3;
// A request whose prompt contains this id has no finite logits, as with a corrupt embedding row: it fails,
// and no other request does.
inline constexpr uint32_t kSimPoisonToken = 0xffffffff;

// The key of a request's token stream. REQUIRES: 0 <= first_index < prompt_length; the prompt is empty or has
// prompt_length ids.
uint64_t SimStreamKey(const SequenceRequest& request);

// The token at `index`; the end-of-sequence token with probability `eos_probability`,
// else one below `vocabulary`.
uint32_t SimToken(uint64_t stream_key, int64_t index, double eos_probability,
                  int32_t vocabulary = kSimVocabulary);

}  // namespace bfio::worker

#endif  // BFIO_WORKER_ENGINE_SIM_SIM_TOKENS_H_
