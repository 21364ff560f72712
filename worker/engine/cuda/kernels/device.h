// The vocabulary that all device kernels are written in.
//
// Purpose: a kernel (a .cuh header) is compiled by nvcc for a GPU, where each word below is an intrinsic or
// one PTX instruction, and by a plain C++ compiler for the tests, where tests/testing/simt runs it thread by
// thread and checks what a GPU leaves undefined. A kernel uses these words instead of CUDA's own, and
// includes no CUDA header. All words are in namespace bfio::worker::gpu.
//
//   BFIO_KERNEL(threads, blocks)      "__global__ void" with launch bounds: at most `threads` a block, and
//                                     registers for `blocks` blocks on a multiprocessor
//   BFIO_DEVICE                       a function for the device; always inlined
//   BFIO_UNROLL BFIO_UNROLL_BY(n)     before a loop: all of it; n rounds at a time
//   BFIO_SHARED_ARRAY(T, name, n)     T name[n] in shared memory; its content is undefined at first
//   BFIO_DYNAMIC_SHARED(name)         unsigned char name[]: the launch's shared_bytes, aligned to 128
//
//   ThreadIndex() BlockThreads() BlockIndex() BlockIndexY() GridBlocks() GridBlocksY() LaneIndex()
//   WarpIndex() SyncBlock()                       all threads of the block, at the same place of the program
//   SyncWarp()                        this and all below: all 32 lanes, at the same place of the program
//   ShuffleXor(v, mask) ShuffleDown(v, n) Shuffle(v, lane)     v of 4 bytes; ShuffleDown past the end: v
//   Ballot(bool)                      bit i: lane i's
//   LoadMatrix4(r, row)               ldmatrix.x4: lane 8i + j gives the address of row j of 8x8 matrix i, 16
//   LoadMatrix4Transposed(r, row)     bytes in shared memory; r[i]: the lane's two elements of matrix i
//   MmaBf16(d, a, b0, b1)             d[16x8] += a[16x16] * b[16x8]: mma.sync.m16n8k16, bf16 in, fp32 out
//
//   CopyAsync16(shared, global, valid) 16 bytes, or 16 zeros when not valid; arrives at a wait, not before
//   CommitAsync() WaitAsync<N>()      closes a group of this thread's copies; waits for all but the N newest
//   Load16(p) Store16(p, Words4) Load8(p) Store8(p, Words2)    vector access, aligned to its size
//
//   Bf16, ToFloat(Bf16), ToBf16(float), PackBf16(low, high), LowFloat(pair), HighFloat(pair)   round to
//   nearest Exp2 Exp Log Rsqrt SquareRoot Fma Mul Add Sub Divide Max Min     Mul, Add and Sub are never fused
//   AtomicAdd(int*, int) AtomicMax(uint64*, v) ThreadFence()         the atomics return the old value
//   FloatBits(f) BitsFloat(u)
//
//   Launch(kernel, LaunchShape, stream, arguments...)   host: nullptr, or the error's text
#ifndef BFIO_WORKER_ENGINE_CUDA_KERNELS_DEVICE_H_
#define BFIO_WORKER_ENGINE_CUDA_KERNELS_DEVICE_H_

#include "worker/engine/cuda/kernels/device_types.h"

#if defined(__CUDACC__)
#include "worker/engine/cuda/kernels/device_cuda.h"
#else
// The emulator's; its folder is on the include path of the tests' targets only.
#include "simt/device_simt.h"
#endif

#endif  // BFIO_WORKER_ENGINE_CUDA_KERNELS_DEVICE_H_
