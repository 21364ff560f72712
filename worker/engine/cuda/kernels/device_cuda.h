// The primitives of device.h on a GPU, sm_80 and newer: intrinsics and single PTX instructions.
#pragma once

#include "worker/engine/cuda/kernels/device_types.h"

#define BFIO_KERNEL(threads, blocks) __global__ void __launch_bounds__(threads, blocks)
#define BFIO_DEVICE __device__ __forceinline__
#define BFIO_UNROLL _Pragma("unroll")
#define BFIO_TEXT(text) _Pragma(#text)
#define BFIO_UNROLL_BY(n) BFIO_TEXT(unroll n)
#define BFIO_SHARED_ARRAY(T, name, n) __shared__ T name[n]
#define BFIO_DYNAMIC_SHARED(name) extern __shared__ __align__(128) unsigned char name[]

namespace bfio::worker::gpu {

BFIO_DEVICE int ThreadIndex() {
  return static_cast<int>(threadIdx.x);
}
BFIO_DEVICE int BlockThreads() {
  return static_cast<int>(blockDim.x);
}
BFIO_DEVICE int BlockIndex() {
  return static_cast<int>(blockIdx.x);
}
BFIO_DEVICE int BlockIndexY() {
  return static_cast<int>(blockIdx.y);
}
BFIO_DEVICE int GridBlocks() {
  return static_cast<int>(gridDim.x);
}
BFIO_DEVICE int LaneIndex() {
  return ThreadIndex() % kWarpLanes;
}
BFIO_DEVICE int WarpIndex() {
  return ThreadIndex() / kWarpLanes;
}

BFIO_DEVICE void SyncBlock() {
  __syncthreads();
}
BFIO_DEVICE void SyncWarp() {
  __syncwarp();
}

template <class T>
BFIO_DEVICE T ShuffleXor(T value, int mask) {
  static_assert(sizeof(T) == 4);
  return __shfl_xor_sync(0xffffffffu, value, mask);
}
template <class T>
BFIO_DEVICE T ShuffleDown(T value, int lanes) {
  static_assert(sizeof(T) == 4);
  return __shfl_down_sync(0xffffffffu, value, lanes);
}
template <class T>
BFIO_DEVICE T Shuffle(T value, int lane) {
  static_assert(sizeof(T) == 4);
  return __shfl_sync(0xffffffffu, value, lane);
}
BFIO_DEVICE uint32_t Ballot(bool predicate) {
  return __ballot_sync(0xffffffffu, predicate);
}

BFIO_DEVICE uint32_t SharedAddress(const void* shared) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
}

BFIO_DEVICE void LoadMatrix4(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(SharedAddress(row))
               : "memory");
}
BFIO_DEVICE void LoadMatrix4Transposed(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(SharedAddress(row))
               : "memory");
}
BFIO_DEVICE void MmaBf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

BFIO_DEVICE void CopyAsync16(void* shared, const void* global, bool valid) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(SharedAddress(shared)),
               "l"(__cvta_generic_to_global(global)), "r"(valid ? 16 : 0)
               : "memory");
}
BFIO_DEVICE void CommitAsync() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int kNewest>
BFIO_DEVICE void WaitAsync() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kNewest) : "memory");
}

BFIO_DEVICE Words4 Load16(const void* p) {
  const uint4 v = *static_cast<const uint4*>(p);
  return {v.x, v.y, v.z, v.w};
}
BFIO_DEVICE void Store16(void* p, Words4 v) {
  *static_cast<uint4*>(p) = make_uint4(v.x, v.y, v.z, v.w);
}
BFIO_DEVICE Words2 Load8(const void* p) {
  const uint2 v = *static_cast<const uint2*>(p);
  return {v.x, v.y};
}
BFIO_DEVICE void Store8(void* p, Words2 v) {
  *static_cast<uint2*>(p) = make_uint2(v.x, v.y);
}

BFIO_DEVICE uint32_t FloatBits(float value) {
  return __float_as_uint(value);
}
BFIO_DEVICE float BitsFloat(uint32_t bits) {
  return __uint_as_float(bits);
}
BFIO_DEVICE float ToFloat(Bf16 value) {
  return BitsFloat(static_cast<uint32_t>(value.bits) << 16);
}
BFIO_DEVICE Bf16 ToBf16(float value) {
  Bf16 result;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(result.bits) : "f"(value));
  return result;
}
BFIO_DEVICE uint32_t PackBf16(float low, float high) {
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
BFIO_DEVICE float LowFloat(uint32_t pair) {
  return BitsFloat(pair << 16);
}
BFIO_DEVICE float HighFloat(uint32_t pair) {
  return BitsFloat(pair & 0xffff0000u);
}

BFIO_DEVICE float Exp2(float value) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(value));
  return result;
}
BFIO_DEVICE float Exp(float value) {
  return expf(value);
}
BFIO_DEVICE float Log(float value) {
  return logf(value);
}
BFIO_DEVICE float SquareRoot(float value) {
  return __fsqrt_rn(value);
}
BFIO_DEVICE float Fma(float a, float b, float c) {
  return __fmaf_rn(a, b, c);
}
BFIO_DEVICE float Mul(float a, float b) {
  return __fmul_rn(a, b);
}
BFIO_DEVICE float Add(float a, float b) {
  return __fadd_rn(a, b);
}
BFIO_DEVICE float Sub(float a, float b) {
  return __fsub_rn(a, b);
}
BFIO_DEVICE float Divide(float a, float b) {
  return __fdiv_rn(a, b);
}
BFIO_DEVICE float Max(float a, float b) {
  return fmaxf(a, b);
}
BFIO_DEVICE float Min(float a, float b) {
  return fminf(a, b);
}

BFIO_DEVICE int AtomicAdd(int* p, int value) {
  return atomicAdd(p, value);
}

template <class... Parameters, class... Arguments>
const char* Launch(void (*kernel)(Parameters...), const LaunchShape& shape, Stream stream,
                   Arguments... arguments) {
  // More shared memory than every GPU has must be requested.
  if (shape.shared_bytes > 48 * 1024) {
    const cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shape.shared_bytes);
    if (error != cudaSuccess) return cudaGetErrorString(error);
  }
  // Clears an error of an earlier call (such as a refused allocation), which was reported then and does not
  // belong to this launch.
  cudaGetLastError();
  kernel<<<dim3(shape.blocks_x, shape.blocks_y), shape.threads, shape.shared_bytes, stream>>>(arguments...);
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

}  // namespace bfio::worker::gpu
