// How a request's load grows while it runs, and how many tokens a step generates. The common increment
// sequence delta_k of the BF-IO paper's Definition 2, in cumulative form, so that a group's loads cost O(1)
// per worker and step for every drift. All active requests share the sequence. With D(k) = delta_1 + .. +
// delta_k, a request of s tokens that first runs in step f loads its worker with s + D(k - 1) - D(f - 1)
// tokens in step k. With A(k) the tokens that each request generates through step k, the request ends in the
// first step k with A(k) - A(f - 1) >= o.
//
//   growth             delta = 1: each token adds its KV (the default; plain decode)
//   constant           delta = 0: every step of a request costs the same
//   speculative:D:P    draft of D tokens; each is accepted with probability P if all before it are:
//                      1 .. D + 1 tokens per step, drawn per step, and as much growth
//   throttled:X        delta = 1 in a share X of the steps, evenly spread, else 0 (0 <= X <= 1)
//   sequence:a,b,..    these increments, repeated
//
// Threads: none; one run owns it. Memory: none for growth, constant and throttled; 8 bytes per step
// otherwise. Deterministic for a seed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/rng.h"

namespace bfio::sim {

class Drift {
 public:
  // INVALID_ARGUMENT for text that has none of the forms above.
  static absl::StatusOr<Drift> Parse(const std::string& text, uint64_t seed);

  // As growth, but A(k) = D(k) = the whole tokens of k * tokens_per_step. REQUIRES: tokens_per_step >= 1.
  static Drift Steady(double tokens_per_step);

  // D(step) and A(step), in tokens; 0 for step 0.
  int64_t GrowthThrough(int64_t step);
  int64_t TokensThrough(int64_t step);
  // The first step with A(step) >= tokens.
  int64_t StepWith(int64_t tokens);

 private:
  enum class Kind { kSteady, kSpeculative, kThrottled, kSequence };
  explicit Drift(uint64_t seed) : rng_(Rng(seed).Fork(0xd21f7)) {}

  void DrawThrough(int64_t step);

  Kind kind_ = Kind::kSteady;
  // throttled, constant: the share; growth, steady: tokens per step.
  double share_ = 1;
  int64_t draft_ = 0;
  double accept_ = 0;
  // sequence: cumulative sums within one repetition; sums_[i] is the sum of the first i + 1 increments.
  std::vector<int64_t> round_;
  // speculative: A(0), A(1), ...
  std::vector<int64_t> drawn_ = {0};
  Rng rng_;
};

}  // namespace bfio::sim
