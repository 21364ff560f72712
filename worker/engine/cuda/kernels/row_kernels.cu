#include "worker/engine/cuda/kernels/row_kernels.cuh"

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

}  // namespace bfio::worker::gpu
