// Draws the next token from a row of logits. The definition of sampling that all engines with a model follow,
// and its implementation on the CPU. Greedy sampling (temperature 0) takes the largest logit, and the
// smallest id among equals. Otherwise the logits are divided by the temperature, the top_k largest are kept,
// of those the fewest whose probabilities sum to at least top_p, and one is drawn by inversion of a uniform
// number. That number depends only on the request's seed and the token's index: the same logits give the same
// token in any batch and after any replay. Threads: a Sampler is scratch space of one thread.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/engine/engine.h"

namespace bfio::worker {

// The sampling parameters for one row of logits.
struct Draw {
  Sampling sampling;
  // Index of the token within the request's output.
  int64_t index = 0;
  // Tokens that end the sequence. Not owned.
  absl::Span<const uint32_t> ends;
  // The sequence's index in the page table; used by backends without a model.
  int32_t sequence = 0;
};

struct Drawn {
  // False: the row's logits are not finite, no token was drawn, and the other fields are undefined. Only the
  // request with this row fails.
  bool finite = true;
  uint32_t id = 0;
  // Natural logarithm of the token's probability, before temperature and truncation.
  float log_probability = 0;
  // Sum of the probabilities of all tokens that end the sequence, at the requested temperature (1 when
  // greedy), before truncation.
  float end_probability = 0;
  // Sampling::logprobs of the most likely tokens, the most likely first; among equals the smaller id.
  std::vector<TopToken> top;
};

// The uniform number in [0, 1) that the token at `index` is drawn with.
double DrawUniform(uint64_t seed, int64_t index);

class Sampler {
 public:
  // INTERNAL when the largest logit is not finite, or a logit is NaN. REQUIRES: logits is not empty, and draw
  // is in range (CheckRequest). Ids in draw.ends beyond the vocabulary are ignored.
  absl::StatusOr<Drawn> Pick(absl::Span<const float> logits, const Draw& draw);

 private:
  struct Candidate {
    float logit;
    uint32_t id;
  };
  uint32_t PickTruncated(absl::Span<const float> logits, const Sampling& sampling, float max, double mass,
                         double uniform);
  // The `count` most likely tokens, with the logarithms of their probabilities. REQUIRES: as many logits.
  void FillTop(absl::Span<const float> logits, size_t count, double log_mass, std::vector<TopToken>& top);
  // Moves the `count` most likely candidates, in order, to the front of candidates_, where `sorted` of them
  // already are.
  void SortFront(size_t sorted, size_t count);

  std::vector<Candidate> candidates_;
};

}  // namespace bfio::worker
