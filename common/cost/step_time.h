// The time of one decode step, by the linear model of the BF-IO paper (docs/research/papers.md, equation
// (6)). One formula for the simulator, the sim engine and reports. Pure. Tokens in, seconds out.
#pragma once

#include <cstdint>

namespace bfio {

// Time of a worker's local step: c + tl * load + prefill * (prompt tokens computed in the step). A barrier
// step takes as long as its slowest worker, so the group's step is StepSeconds(max_g L_g, ...). The defaults
// are from the paper's authors' public simulator, for G = 16, B = 72; they are not measurements of bfio.
struct StepCost {
  // (0.6e-3 * B + 35e-3) / 16 s at B = 72: a part per request and a fixed part, divided as in their script
  // (other scripts of theirs divide by 8). Here it is a constant for B = 72.
  double c_s = 4.8875e-3;
  // 1.5 * 2 * 576 * 61e-6 / 2^20 s per resident KV token.
  double tl_s_per_token = 1.00525e-7;
  // The paper has no cost of prefill; 0 keeps its results reproducible.
  double prefill_s_per_token = 0;

  double StepSeconds(int64_t load_tokens, int64_t prefill_tokens = 0) const {
    return c_s + tl_s_per_token * static_cast<double>(load_tokens) +
           prefill_s_per_token * static_cast<double>(prefill_tokens);
  }
};

}  // namespace bfio
