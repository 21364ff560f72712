// Arguments and results of the kernel that draws tokens (sample.cuh).
//
// Purpose: what the host stages for each drawn token, and what it gets back. Threads: plain data.
#ifndef BFIO_WORKER_ENGINE_CUDA_KERNELS_SAMPLE_ARGS_H_
#define BFIO_WORKER_ENGINE_CUDA_KERNELS_SAMPLE_ARGS_H_

#include <cstdint>

#include "worker/engine/cuda/kernels/row_args.h"

namespace bfio::worker::gpu {

// Sums of weights are exact integers; more tokens could overflow a bin's.
inline constexpr int64_t kMaxVocab = 1 << 18;

// One drawn token's worker::Draw, as the device wants it.
struct DrawParams {
  // What it is drawn with: worker::DrawUniform.
  double uniform = 0;
  double top_p = 1;
  // 1 / temperature; 0: greedy.
  float inverse_temperature = 0;
  // 0: all.
  int32_t top_k = 0;
  // Tokens that end the sequence: ends[first_end] and on, each once, all in the vocabulary.
  int32_t first_end = 0;
  int32_t end_count = 0;
};

struct DrawResult {
  uint32_t id = 0;
  float log_probability = 0;
  float end_probability = 0;
  // 0 when a logit was no finite number; the rest is nothing then.
  uint32_t finite = 0;
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
  int32_t grid_draws = 0;
};

}  // namespace bfio::worker::gpu

#endif  // BFIO_WORKER_ENGINE_CUDA_KERNELS_SAMPLE_ARGS_H_
