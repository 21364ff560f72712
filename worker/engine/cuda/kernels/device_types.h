// Plain types that host and device share: no CUDA header, no emulator.
#pragma once

#include <cstdint>

// Marks small functions that both the host and kernels call.
#if defined(__CUDACC__)
#define BFIO_HOST_DEVICE __host__ __device__
#else
#define BFIO_HOST_DEVICE
#endif

// The type that cudaStream_t points to.
struct CUstream_st;

namespace bfio::worker::gpu {

// cudaStream_t, named without CUDA's headers.
using Stream = CUstream_st*;

// A bfloat16: the upper half of a float's bits.
struct Bf16 {
  uint16_t bits;
};

// The data of one vector access.
struct alignas(16) Words4 {
  uint32_t x, y, z, w;
};
struct alignas(8) Words2 {
  uint32_t x, y;
};

inline constexpr int kWarpLanes = 32;

// Blocks of the grid, threads of a block, dynamic shared memory of a block.
struct LaunchShape {
  int blocks_x = 1;
  int blocks_y = 1;
  int threads = kWarpLanes;
  int shared_bytes = 0;
};

}  // namespace bfio::worker::gpu
