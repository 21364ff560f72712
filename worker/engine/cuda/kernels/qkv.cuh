// The kernel between the q/k/v product and attention: biases, norms of query and key heads, rotation, and the
// append to the paged cache. One warp per row and head; a lane has the pairs lane, lane + 32, .. of the head,
// in fp32, rounded once at the end.
#pragma once

#include "worker/engine/cuda/kernels/columns.cuh"
#include "worker/engine/cuda/kernels/device.h"
#include "worker/engine/cuda/kernels/qkv_args.h"

namespace bfio::worker::gpu {

inline constexpr int kQkvThreads = 256;
inline constexpr int kPairsPerLane = kMaxHeadDim / 2 / kWarpLanes;

// Dimensions pair and pair + head_dim / 2 of a head, for each pair of a lane.
struct LanePairs {
  float low[kPairsPerLane];
  float high[kPairsPerLane];
};

BFIO_DEVICE void NormHead(LanePairs& p, const Bf16* weight, float epsilon, int half) {
  float squares = 0;
  BFIO_UNROLL
  for (int i = 0; i < kPairsPerLane; ++i) squares += p.low[i] * p.low[i] + p.high[i] * p.high[i];
  const float mean = WarpSum(squares) / static_cast<float>(2 * half);
  const float inverse = 1.0f / SquareRoot(mean + epsilon);
  BFIO_UNROLL
  for (int i = 0; i < kPairsPerLane; ++i) {
    const int pair = LaneIndex() + i * kWarpLanes;
    if (pair >= half) continue;
    p.low[i] *= inverse * ToFloat(weight[pair]);
    p.high[i] *= inverse * ToFloat(weight[pair + half]);
  }
}

BFIO_DEVICE void RotateHead(LanePairs& p, const float* rotation, int half) {
  BFIO_UNROLL
  for (int i = 0; i < kPairsPerLane; ++i) {
    const int pair = LaneIndex() + i * kWarpLanes;
    if (pair >= half) continue;
    const float cosine = rotation[2 * pair], sine = rotation[2 * pair + 1];
    const float low = p.low[i], high = p.high[i];
    p.low[i] = low * cosine - high * sine;
    p.high[i] = high * cosine + low * sine;
  }
}

// Grid: [rows, heads of all three kinds / warps per block, rounded up].
BFIO_KERNEL(kQkvThreads, 2) QkvKernel(QkvArgs args) {
  const int64_t row = BlockIndex();
  const int head = BlockIndexY() * (BlockThreads() / kWarpLanes) + WarpIndex();
  const int heads = args.q_heads + 2 * args.kv.kv_heads, dim = args.kv.head_dim, half = dim / 2;
  if (row >= args.counts->rows || head >= heads) return;
  Bf16* const from = args.qkv + (row * heads + head) * dim;
  LanePairs p = {};
  BFIO_UNROLL
  for (int i = 0; i < kPairsPerLane; ++i) {
    const int pair = LaneIndex() + i * kWarpLanes;
    if (pair >= half) continue;
    p.low[i] = ToFloat(from[pair]);
    p.high[i] = ToFloat(from[pair + half]);
    if (args.bias != nullptr) {
      p.low[i] += ToFloat(args.bias[head * dim + pair]);
      p.high[i] += ToFloat(args.bias[head * dim + pair + half]);
    }
  }
  const bool query = head < args.q_heads, value = head >= args.q_heads + args.kv.kv_heads;
  const Bf16* const norm = query ? args.q_norm : value ? nullptr : args.k_norm;
  if (norm != nullptr) NormHead(p, norm, args.epsilon, half);
  if (!value) RotateHead(p, args.rotations + row * dim, half);
  Bf16* to = from;
  if (!query) {
    const int kv_head = head - args.q_heads - (value ? args.kv.kv_heads : 0);
    const int slot = args.positions[row] % args.kv.page_tokens;
    to = (value ? args.values : args.keys) + args.kv.TokenOffset(args.row_pages[row], kv_head, slot);
  }
  BFIO_UNROLL
  for (int i = 0; i < kPairsPerLane; ++i) {
    const int pair = LaneIndex() + i * kWarpLanes;
    if (pair >= half) continue;
    to[pair] = ToBf16(p.low[i]);
    to[pair + half] = ToBf16(p.high[i]);
  }
}

}  // namespace bfio::worker::gpu
