// Draws the next token from a row of logits.
//
// Purpose: the one definition of sampling, for all engines and for replays. Greedy (temperature 0) takes the
// largest logit, the smallest id among equals. Otherwise logits are divided by the temperature, the top_k
// largest kept, of those the fewest whose probabilities sum to at least top_p, and one is drawn by inversion
// of one uniform number that depends on the request's seed and the token's index alone: the same logits give
// the same token in any batch and after any replay. Threads: a Sampler is scratch space of one thread.
#ifndef BFIO_WORKER_ENGINE_SAMPLING_SAMPLER_H_
#define BFIO_WORKER_ENGINE_SAMPLING_SAMPLER_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/engine/engine.h"

namespace bfio::worker {

// What is asked of one row of logits.
struct Draw {
  Sampling sampling;
  // Of the token among all that the request generates.
  int64_t index = 0;
  // Tokens that end the sequence; borrowed.
  absl::Span<const uint32_t> ends;
  // The page table's index of its sequence; for backends without a model.
  int32_t sequence = 0;
};

struct Drawn {
  // False: the row's logits are not finite numbers, nothing was drawn, and the rest means nothing. The fault
  // of the request whose row it is, and of no other.
  bool finite = true;
  uint32_t id = 0;
  // ln of its probability, before temperature and truncation.
  float log_probability = 0;
  // That of all tokens that end the sequence together: at the temperature asked for (1 when greedy), before
  // truncation.
  float end_probability = 0;
};

// In [0, 1): what the token at `index` is drawn with.
double DrawUniform(uint64_t seed, int64_t index);

class Sampler {
 public:
  // INTERNAL when the largest logit is not a finite number, or one is no number. REQUIRES: logits is not
  // empty, and draw is in range (CheckRequest); ids in draw.ends beyond the vocabulary are ignored.
  absl::StatusOr<Drawn> Pick(absl::Span<const float> logits, const Draw& draw);

 private:
  struct Candidate {
    float logit;
    uint32_t id;
  };
  uint32_t PickTruncated(absl::Span<const float> logits, const Sampling& sampling, float max, double mass,
                         double uniform);
  // The `count` most likely candidates at the front of candidates_, in order; they are `sorted` of them so
  // far.
  void SortFront(size_t sorted, size_t count);

  std::vector<Candidate> candidates_;
};

}  // namespace bfio::worker

#endif  // BFIO_WORKER_ENGINE_SAMPLING_SAMPLER_H_
