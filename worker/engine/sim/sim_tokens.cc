#include "worker/engine/sim/sim_tokens.h"

#include "common/base/rng.h"

namespace bfio::worker {

uint64_t SimStreamKey(const SequenceRequest& request) {
  const int64_t original_length = request.prompt_length - request.first_index;
  uint64_t key = Mix64(request.sampling.seed ^ Mix64(static_cast<uint64_t>(original_length)));
  if (request.prompt.empty()) return key;
  // Excludes the delivered tokens at the end of the prompt.
  for (int64_t i = 0; i < original_length; ++i) key = Mix64(key ^ request.prompt[i]);
  return key;
}

uint32_t SimToken(uint64_t stream_key, int64_t index, double eos_probability, int32_t vocabulary) {
  Rng rng(stream_key ^ Mix64(static_cast<uint64_t>(index)));
  if (rng.Uniform() < eos_probability) return kSimEosToken;
  return kSimFirstOrdinaryToken +
         static_cast<uint32_t>(rng.Below(static_cast<uint64_t>(vocabulary) - kSimFirstOrdinaryToken));
}

}  // namespace bfio::worker
