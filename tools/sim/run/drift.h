// How a request's load moves while it runs, and how many tokens a step makes.
//
// Purpose: the common increment sequence delta_k of the BF-IO paper's Definition 2, as closed sums, so that a
// group's loads stay O(1) per worker and step whatever the drift. All active requests share it. A request of
// s tokens that first runs in step f loads its worker with s + D(k - 1) - D(f - 1) in step k, D(k) = delta_1
// +
// .. + delta_k, and ends in the first step k with A(k) - A(f - 1) >= o, A(k) being the tokens each makes
// through step k.
//
//   growth             delta = 1: each token adds its KV (the default; plain decode)
//   constant           delta = 0: every step of a request costs the same
//   speculative:D:P    draft of D tokens of which each is accepted with probability P while all before it
//                      were: 1 .. D + 1 tokens a step, drawn per step, and as much growth
//   throttled:X        delta = 1 in a share X of the steps, evenly spread, else 0 (0 <= X <= 1)
//   sequence:a,b,..    these increments, over and over
//
// Threads: none; one run owns it. Memory: none for growth, constant and throttled; 8 bytes per step
// otherwise. Deterministic for a seed.
#ifndef BFIO_TOOLS_SIM_RUN_DRIFT_H_
#define BFIO_TOOLS_SIM_RUN_DRIFT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/rng.h"

namespace bfio::sim {

class Drift {
 public:
  // INVALID_ARGUMENT for anything but the forms above.
  static absl::StatusOr<Drift> Parse(const std::string& text, uint64_t seed);

  // D(step) and A(step), tokens; 0 for step 0.
  int64_t GrowthThrough(int64_t step);
  int64_t TokensThrough(int64_t step);

  // The step in which a request of `output_tokens` that first runs in `first_step` makes its last token;
  // never later than first_step + output_tokens - 1.
  int64_t LastStep(int64_t first_step, int64_t output_tokens);

 private:
  enum class Kind { kGrowth, kConstant, kSpeculative, kThrottled, kSequence };
  explicit Drift(uint64_t seed) : rng_(Rng(seed).Fork(0xd21f7)) {}

  void DrawThrough(int64_t step);

  Kind kind_ = Kind::kGrowth;
  double share_ = 1;
  int64_t draft_ = 0;
  double accept_ = 0;
  // sequence: the sums within one round; sums_[i] after i + 1 increments.
  std::vector<int64_t> round_;
  // speculative: A(0), A(1), ...
  std::vector<int64_t> drawn_ = {0};
  Rng rng_;
};

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_RUN_DRIFT_H_
