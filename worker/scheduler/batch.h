// The data of batch formation: requests with their remaining tokens, and the chunks of a step. Plain data.
// Threads: none. Units: tokens. A request has prefill_left prompt tokens to compute and then decode_left
// tokens to decode. A step computes some of its next prompt tokens, or, if none is left when the step is
// formed, one decode: the last prompt token and the first decode are never in the same step.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/cost/prompt_work.h"

namespace bfio::worker {

struct BatchRequest {
  int64_t prefill_left = 0;
  // Exact, or an upper bound that is 0 when nothing is left.
  int64_t decode_left = 0;
  // Prompts with larger values are computed first.
  int64_t priority = 0;
  // Steps since one last contained it, or since it started.
  int64_t passed_over = 0;
  // Tokens in its KV cache, which its next tokens attend to.
  int64_t cached = 0;
  // The engine's step from which on the request counts as waiting; negative: before the engine's first step.
  // Of prompts with the same priority, smaller values are computed first.
  int64_t senior_step = 0;

  bool decoding() const { return prefill_left == 0 && decode_left > 0; }
};

// A chunk of one request: its next `rows` tokens.
struct Chunk {
  // Index of the request among those that the step was formed from.
  int32_t which = 0;
  int32_t rows = 0;
};

// A prompt that has been passed over in this many steps goes before those that have not. Without this, a long
// prompt that has started, and holds a slot and KV, would wait as long as more urgent ones keep coming. The
// value, a second or more of steps, is not tuned.
inline constexpr int64_t kPatienceSteps = 64;

// The most rows of a step with at most `sequences` sequences.
inline int64_t MaxRows(int64_t sequences, int64_t step_tokens) {
  return std::max(step_tokens, sequences + kMinPrefillRows);
}

}  // namespace bfio::worker
