// What batch formation is about: requests with what is left of them, the capacity of a batch, and its chunks.
//
// Purpose: the words that schedulers, engines and simulators share. Plain data. Threads: none. Tokens.
//
// A request has prefill_left prompt tokens and then decode_left tokens to decode. A batch computes some of
// its next prompt tokens, or, once none is left when the batch is formed, one decode: the last prompt token
// and the first decode never share a batch.
#ifndef BFIO_WORKER_SCHEDULER_BATCH_H_
#define BFIO_WORKER_SCHEDULER_BATCH_H_

#include <algorithm>
#include <cstdint>
#include <limits>

namespace bfio::worker {

struct BatchRequest {
  int64_t prefill_left = 0;
  // What is left for certain or at most: the shortest-remaining order reads the number, the others only
  // whether there is any.
  int64_t decode_left = 0;
  // Larger is served first, by the priority order alone.
  int64_t priority = 0;
  // Holds a slot and its KV. One that does not has not begun, so it has a prompt left: the code that puts it
  // into a batch takes kv_tokens and a slot for it, until it ends.
  bool resident = true;
  // Reserved when it starts; not read for residents.
  int64_t kv_tokens = 0;
  // Batches since it last had a token in one (or began); read for residents, by orders other than fcfs.
  int64_t passed_over = 0;
  // Tokens in its cache: what its next tokens attend to.
  int64_t cached = 0;

  bool decoding() const { return prefill_left == 0 && decode_left > 0; }
  // Tokens that could be in the next batch.
  int64_t available() const { return prefill_left > 0 ? prefill_left : decoding() ? 1 : 0; }
};

struct BatchRoom {
  static constexpr int64_t kUnbounded = std::numeric_limits<int64_t>::max();

  // b: tokens of a batch, at least 1.
  int64_t token_budget = 1;
  // For requests that are not resident yet.
  int64_t free_slots = kUnbounded;
  int64_t free_kv_tokens = kUnbounded;
  // Of token_budget, what prompts may take.
  int64_t prefill_tokens = kUnbounded;
};

// A piece of one request: its next `rows` tokens.
struct Chunk {
  // Which of the requests asked about.
  int32_t which = 0;
  int32_t rows = 0;
};

// Whom an order other than fcfs has passed over in so many batches, goes before those it has not: else a long
// prompt that has begun, and holds its slot and KV, waits as long as shorter ones come. Not tuned: a second
// or more of steps.
inline constexpr int64_t kPatienceBatches = 64;

// An engine lets no decode wait for the budget: every rank makes a token of every decoding request in every
// step, and prompts get this many rows however many those are. A whole tile of the CPU and GPU kernels' rows;
// not tuned.
inline constexpr int64_t kMinPrefillRows = 16;

// Rows that a step of at most `sequences` sequences can have.
inline int64_t MaxRows(int64_t sequences, int64_t step_tokens) {
  return std::max(step_tokens, sequences + kMinPrefillRows);
}

}  // namespace bfio::worker

#endif  // BFIO_WORKER_SCHEDULER_BATCH_H_
