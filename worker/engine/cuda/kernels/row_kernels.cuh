// The kernels between a layer's products, row by row: embedding, RMSNorm with the addition to the residual,
// SiLU. One block per row (SiLU: several). Rows beyond the step's are not computed: their inputs are
// undefined. Columns are processed 8 at a time where the row's width is a multiple of 8, so that accesses are
// 16 bytes; otherwise one by one.
#pragma once

#include "worker/engine/cuda/kernels/columns.cuh"
#include "worker/engine/cuda/kernels/device.h"
#include "worker/engine/cuda/kernels/row_args.h"

namespace bfio::worker::gpu {

inline constexpr int kRowThreads = 256;
// Outputs per thread of a SiLU block.
inline constexpr int kSiluWidth = 8;

BFIO_KERNEL(kRowThreads, 2) EmbedKernel(EmbedArgs args) {
  const int64_t row = BlockIndex();
  if (row >= args.counts->rows) return;
  if (args.table != nullptr) {
    const Bf16* const from = args.table + static_cast<int64_t>(args.token_ids[row]) * args.hidden;
    for (int i = ThreadIndex(); i < args.hidden; i += BlockThreads()) {
      args.residual[row * args.hidden + i] = ToFloat(from[i]);
    }
  }
  const auto position = static_cast<float>(args.positions[row]);
  for (int i = ThreadIndex(); i < args.half_dim; i += BlockThreads()) {
    // In fp32, as transformers computes it.
    const float angle = Mul(position, args.frequencies[i]);
    float* const rotation = args.rotations + 2 * (row * args.half_dim + i);
    rotation[0] = cosf(angle);
    rotation[1] = sinf(angle);
  }
}

// The residual from column i on, with what is to be added to it.
template <int N>
BFIO_DEVICE Columns<N> SumAt(const NormArgs& args, int64_t row, int i) {
  Columns<N> sum = LoadColumns<N>(args.residual + row * args.hidden + i);
  if (args.addend != nullptr) AddColumns(sum, LoadColumns<N>(args.addend + row * args.hidden + i));
  if (args.bias != nullptr) AddColumns(sum, LoadColumns<N>(args.bias + i));
  return sum;
}

template <int N>
BFIO_DEVICE void NormRow(const NormArgs& args, int64_t out_row, int64_t row, float* by_warp) {
  const int first = ThreadIndex() * N, step = BlockThreads() * N;
  const bool keep = args.picked == nullptr && args.addend != nullptr;
  float squares = 0;
  for (int i = first; i < args.hidden; i += step) {
    const Columns<N> sum = SumAt<N>(args, row, i);
    if (keep) StoreColumns(args.residual + row * args.hidden + i, sum);
    BFIO_UNROLL
    for (int j = 0; j < N; ++j) squares += sum.at[j] * sum.at[j];
  }
  if (args.normed == nullptr) return;
  squares = WarpSum(squares);
  if (LaneIndex() == 0) by_warp[WarpIndex()] = squares;
  SyncBlock();
  float total = 0;
  for (int warp = 0; warp < BlockThreads() / kWarpLanes; ++warp) total += by_warp[warp];
  const float inverse = 1.0f / SquareRoot(total / static_cast<float>(args.hidden) + args.epsilon);
  for (int i = first; i < args.hidden; i += step) {
    // Each thread reads only what it wrote itself.
    Columns<N> sum = keep ? LoadColumns<N>(args.residual + row * args.hidden + i) : SumAt<N>(args, row, i);
    const Columns<N> weight = LoadColumns<N>(args.weight + i);
    BFIO_UNROLL
    for (int j = 0; j < N; ++j) sum.at[j] = ToFloat(ToBf16(sum.at[j] * inverse)) * weight.at[j];
    StoreColumns(args.normed + out_row * args.hidden + i, sum);
  }
}

BFIO_KERNEL(kRowThreads, 2) NormKernel(NormArgs args) {
  BFIO_SHARED_ARRAY(float, by_warp, kRowThreads / kWarpLanes);
  const int64_t i = BlockIndex();
  if (i >= (args.picked != nullptr ? args.counts->draws : args.counts->rows)) return;
  const int64_t row = args.picked != nullptr ? args.picked[i] : i;
  if (args.hidden % 8 == 0) {
    NormRow<8>(args, i, row, by_warp);
  } else {
    NormRow<1>(args, i, row, by_warp);
  }
}

template <int N>
BFIO_DEVICE void SiluColumns(const SiluArgs& args, int64_t row, int i) {
  const Bf16* const gates = args.gate_up + 2 * row * args.width;
  Columns<N> gate = LoadColumns<N>(gates + i), up = LoadColumns<N>(gates + args.width + i);
  if (args.bias != nullptr) {
    AddColumns(gate, LoadColumns<N>(args.bias + i));
    AddColumns(up, LoadColumns<N>(args.bias + args.width + i));
  }
  BFIO_UNROLL
  for (int j = 0; j < N; ++j) gate.at[j] = gate.at[j] / (1.0f + Exp(-gate.at[j])) * up.at[j];
  StoreColumns(args.out + row * args.width + i, gate);
}

// Grid: [rows, columns / (kRowThreads * kSiluWidth), rounded up].
BFIO_KERNEL(kRowThreads, 2) SiluKernel(SiluArgs args) {
  const int64_t row = BlockIndex();
  if (row >= args.counts->rows) return;
  const int first = (BlockIndexY() * BlockThreads() + ThreadIndex()) * kSiluWidth;
  if (first >= args.width) return;
  if (args.width % kSiluWidth == 0) {
    SiluColumns<kSiluWidth>(args, row, first);
  } else {
    const int end = first + kSiluWidth < args.width ? first + kSiluWidth : args.width;
    for (int i = first; i < end; ++i) SiluColumns<1>(args, row, i);
  }
}

BFIO_KERNEL(kRowThreads, 2)
FillRandomKernel(Bf16* out, int64_t count, uint64_t seed, float spread, float centre) {
  const int64_t step = static_cast<int64_t>(GridBlocks()) * BlockThreads();
  for (int64_t i = static_cast<int64_t>(BlockIndex()) * BlockThreads() + ThreadIndex(); i < count;
       i += step) {
    uint64_t x = (seed + static_cast<uint64_t>(i)) * 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    const float uniform = static_cast<float>(x >> 40) * 0x1p-23f - 1.0f;
    out[i] = ToBf16(uniform * spread + centre);
  }
}

}  // namespace bfio::worker::gpu
