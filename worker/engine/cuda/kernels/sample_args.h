// Arguments and results of the kernel that draws tokens (sample.cuh). What the host stages for each draw, and
// what it reads back. Threads: plain data.
#pragma once

#include <cstdint>

#include "worker/engine/cuda/kernels/row_args.h"

namespace bfio::worker::gpu {

// Sums of weights are exact integers; with more tokens a bin's sum could overflow.
inline constexpr int64_t kMaxVocab = 1 << 18;

// Elements per draw in SampleArgs::tops (worker::kMaxLogprobs).
inline constexpr int32_t kMaxTop = 20;

// The worker::Draw of one token, in the device's format.
struct DrawParams {
  // The uniform number of the draw: worker::DrawUniform.
  double uniform = 0;
  double top_p = 1;
  // 1 / temperature; 0: greedy.
  float inverse_temperature = 0;
  // 0: no limit.
  int32_t top_k = 0;
  // End tokens: `ends` from first_end on, each once, all in the vocabulary.
  int32_t first_end = 0;
  int32_t end_count = 0;
  // The number of most likely tokens that are requested, at most kMaxTop and the vocabulary.
  int32_t top = 0;
};

struct DrawResult {
  uint32_t id = 0;
  float log_probability = 0;
  float end_probability = 0;
  // 0 when a logit was not finite; the other fields are then undefined.
  uint32_t finite = 0;
};

// One of the most likely tokens of a row.
struct TopResult {
  uint32_t id = 0;
  float log_probability = 0;
};

struct SampleArgs {
  const StepCounts* counts = nullptr;
  // [draws, vocab]
  const float* logits = nullptr;
  int32_t vocab = 0;
  // [draws]
  const DrawParams* params = nullptr;
  const uint32_t* ends = nullptr;
  // [draws]
  DrawResult* results = nullptr;
  // [draws, kMaxTop] The first DrawParams::top of each are set.
  TopResult* tops = nullptr;
  int32_t grid_draws = 0;
};

}  // namespace bfio::worker::gpu
