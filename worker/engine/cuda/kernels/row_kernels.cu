#include "worker/engine/cuda/kernels/row_kernels.cuh"

#include "worker/engine/cuda/kernels/qkv.cuh"
#include "worker/engine/cuda/kernels/row_kernels.h"

namespace bfio::worker::gpu {

const char* LaunchEmbed(const EmbedArgs& args, Stream stream) {
  if (args.grid_rows == 0) return nullptr;
  return Launch(EmbedKernel, {args.grid_rows, 1, kRowThreads, 0}, stream, args);
}

const char* LaunchNorm(const NormArgs& args, Stream stream) {
  if (args.grid_rows == 0) return nullptr;
  return Launch(NormKernel, {args.grid_rows, 1, kRowThreads, 0}, stream, args);
}

const char* LaunchSilu(const SiluArgs& args, Stream stream) {
  if (args.grid_rows == 0) return nullptr;
  constexpr int kBlockColumns = kRowThreads * kSiluWidth;
  const int blocks = (args.width + kBlockColumns - 1) / kBlockColumns;
  return Launch(SiluKernel, {args.grid_rows, blocks, kRowThreads, 0}, stream, args);
}

const char* LaunchQkv(const QkvArgs& args, Stream stream) {
  if (args.grid_rows == 0) return nullptr;
  constexpr int kWarps = kQkvThreads / kWarpLanes;
  const int blocks = (args.q_heads + 2 * args.kv.kv_heads + kWarps - 1) / kWarps;
  return Launch(QkvKernel, {args.grid_rows, blocks, kQkvThreads, 0}, stream, args);
}

const char* LaunchFillRandom(Bf16* out, int64_t count, uint64_t seed, float spread, float centre,
                             Stream stream) {
  constexpr int kBlocks = 1024;
  return Launch(FillRandomKernel, {kBlocks, 1, kRowThreads, 0}, stream, out, count, seed, spread, centre);
}

}  // namespace bfio::worker::gpu
