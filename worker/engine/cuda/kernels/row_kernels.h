// Launchers of the kernels that process row by row (row_kernels.cuh, qkv.cuh), and of the kernel that draws
// tokens (sample.cuh). Called by the forward pass; compiled by nvcc, or by the tests for the emulator. Each
// returns null, or the error's text. A launch with grid_rows (or grid_draws) 0 does nothing. Threads: any.
#pragma once

#include "worker/engine/cuda/kernels/qkv_args.h"
#include "worker/engine/cuda/kernels/row_args.h"
#include "worker/engine/cuda/kernels/sample_args.h"

namespace bfio::worker::gpu {

const char* LaunchEmbed(const EmbedArgs& args, Stream stream);
const char* LaunchNorm(const NormArgs& args, Stream stream);
const char* LaunchSilu(const SiluArgs& args, Stream stream);
// REQUIRES: the head dimension is even and at most kMaxHeadDim.
const char* LaunchQkv(const QkvArgs& args, Stream stream);
// Sets out[i] = (a random number in -1 .. 1) * spread + centre: weights for benchmarks.
const char* LaunchFillRandom(Bf16* out, int64_t count, uint64_t seed, float spread, float centre,
                             Stream stream);
// REQUIRES: vocab <= kMaxVocab.
const char* LaunchSample(const SampleArgs& args, Stream stream);

}  // namespace bfio::worker::gpu
