// The data of batch formation: requests with their remaining tokens, the capacity of a batch, and its chunks.
// Types that schedulers, engines and simulators share. Plain data. Threads: none. Units: tokens. A request
// has prefill_left prompt tokens to compute and then decode_left tokens to decode. A batch computes some of
// its next prompt tokens, or, if none is left when the batch is formed, one decode: the last prompt token and
// the first decode are never in the same batch.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "common/cost/prompt_work.h"

namespace bfio::worker {

struct BatchRequest {
  int64_t prefill_left = 0;
  // Exact, or an upper bound: only the shortest-remaining order uses the number; the others test whether it
  // is 0.
  int64_t decode_left = 0;
  // Larger values are served first; used by the orders priority and urgency.
  int64_t priority = 0;
  // Whether the request holds a slot and its KV. One that does not has not started, so it has prompt tokens
  // left. The code that puts it into a batch reserves a slot and kv_tokens for it until it ends.
  bool resident = true;
  // KV tokens reserved when it starts; not used for residents.
  int64_t kv_tokens = 0;
  // Batches since one last contained it (or since it started). Used for residents, by orders other than fcfs.
  int64_t passed_over = 0;
  // Tokens in its KV cache, which its next tokens attend to.
  int64_t cached = 0;
  // The engine's step from which on the request counts as waiting; negative: before the engine's first step.
  // The urgency order serves smaller values of the same priority first.
  int64_t senior_step = 0;

  bool decoding() const { return prefill_left == 0 && decode_left > 0; }
  // Tokens that the next batch could contain.
  int64_t available() const { return prefill_left > 0 ? prefill_left : decoding() ? 1 : 0; }
};

struct BatchCapacity {
  static constexpr int64_t kUnbounded = std::numeric_limits<int64_t>::max();

  // b: the most tokens of a batch, at least 1.
  int64_t token_budget = 1;
  // Free slots for requests that are not resident yet.
  int64_t free_slots = kUnbounded;
  int64_t free_kv_tokens = kUnbounded;
  // The part of token_budget that prompts may use.
  int64_t prefill_tokens = kUnbounded;
};

// A chunk of one request: its next `rows` tokens.
struct Chunk {
  // Index of the request among those passed to the scheduler.
  int32_t which = 0;
  int32_t rows = 0;
};

// A resident that an order other than fcfs has passed over in this many batches goes before those that it has
// not. Without this, a long prompt that has started, and holds a slot and KV, would wait as long as shorter
// ones keep coming. The value, a second or more of steps, is not tuned.
inline constexpr int64_t kPatienceBatches = 64;

// The most rows of a step with at most `sequences` sequences.
inline int64_t MaxRows(int64_t sequences, int64_t step_tokens) {
  return std::max(step_tokens, sequences + kMinPrefillRows);
}

}  // namespace bfio::worker
