// The time that one batch of prompt tokens and decodes takes on one engine, as a function of its tokens. The
// time law of "Throughput-Optimal Scheduling Algorithms for LLM Inference and AI Agents": a fixed time for
// reading the weights, a slope beyond the load at which compute dominates, and optionally its appendix's
// terms for long contexts (A.1, A.2). In contrast, step_time.h models decode alone, by resident tokens. Pure.
// Tokens in, seconds out. Any thread.
#pragma once

#include <algorithm>
#include <cstdint>

namespace bfio {

// The properties of a batch that determine its time.
struct BatchLoad {
  // x: prompt tokens and decodes.
  int64_t tokens = 0;
  // A chunk of p prompt tokens attends to the `done` tokens before it and to itself: sum over prompts of p
  // (done + p / 2).
  double prefill_pairs = 0;
  // Sum over decodes of the tokens in their caches.
  double decode_context = 0;

  // Adds a chunk of a prompt of which `done` tokens are in the cache.
  void AddPrefill(int64_t chunk, int64_t done) {
    tokens += chunk;
    prefill_pairs +=
        static_cast<double>(chunk) * (static_cast<double>(done) + static_cast<double>(chunk) / 2);
  }
  void AddDecode(int64_t context) {
    ++tokens;
    decode_context += static_cast<double>(context);
  }
};

// t(x) = c + a max(0, x - b0) + k1 prefill_pairs + k2 decode_context; an empty batch takes no time. With a
// granule, x is rounded up to a multiple of it.
struct BatchCost {
  // The paper's fit for Llama-3-70B on two A100 with tensor parallelism.
  double c_s = 45.5e-3;
  double a_s_per_token = 0.30e-3;
  int64_t b0_tokens = 64;
  // 1: no granule. The paper's third version has a staircase instead of the slope.
  int64_t granule_tokens = 1;
  // 0: no such term; the paper gives no coefficients. LongContextLlama70B below derives them from bandwidths.
  double k1_s_per_pair = 0;
  double k2_s_per_token = 0;

  double Seconds(const BatchLoad& load) const {
    if (load.tokens <= 0) return 0;
    const int64_t steps = (load.tokens + granule_tokens - 1) / granule_tokens;
    const auto beyond = static_cast<double>(std::max<int64_t>(0, steps * granule_tokens - b0_tokens));
    return c_s + a_s_per_token * beyond + k1_s_per_pair * load.prefill_pairs +
           k2_s_per_token * load.decode_context;
  }
  double Seconds(int64_t tokens) const { return Seconds(BatchLoad{.tokens = tokens}); }

  // Tokens per second with full batches, prompts and decodes together: the throughput of a work-conserving
  // scheduler.
  double Capacity(int64_t token_budget) const {
    return static_cast<double>(token_budget) / Seconds(token_budget);
  }
};

// The same engine with the appendix's terms, derived from the architecture: 80 layers of width 8,192, 8 KV
// heads of 128, fp16. This gives 4 * 8192 * 80 operations per pair of tokens at 2 x 312e12 per second, and
// 327,680 bytes of KV per token, read at 2 x 2.039e12 bytes per second.
inline BatchCost LongContextLlama70B() {
  constexpr double kKvBytes = 2.0 * 80 * 8 * 128 * 2;
  BatchCost cost;
  cost.k1_s_per_pair = 4.0 * 8192 * 80 / (2 * 312e12);
  cost.k2_s_per_token = kKvBytes / (2 * 2.039e12);
  return cost;
}

}  // namespace bfio
