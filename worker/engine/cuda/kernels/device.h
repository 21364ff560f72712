// The primitives that all device kernels are written with. A kernel (a .cuh header) is compiled by nvcc for a
// GPU, where each primitive below is an intrinsic or one PTX instruction, and by a plain C++ compiler for the
// tests, where tests/testing/simt runs it thread by thread and checks for what is undefined on a GPU. A
// kernel uses these primitives instead of CUDA's own, and includes no CUDA header. All are in namespace
// bfio::worker::gpu.
#pragma once

#include "worker/engine/cuda/kernels/device_types.h"

//   BFIO_KERNEL(threads, blocks)      "__global__ void" with launch bounds: at most `threads` per block, and
//                                     registers for `blocks` blocks per multiprocessor
//   BFIO_DEVICE                       a function for the device; always inlined
//   BFIO_UNROLL, BFIO_UNROLL_BY(n)    unrolls the next loop completely, or n iterations at a time
//   BFIO_SHARED_ARRAY(T, name, n)     T name[n] in shared memory; its initial content is undefined
//   BFIO_DYNAMIC_SHARED(name)         unsigned char name[]: the launch's shared_bytes, aligned to 128
//
//   ThreadIndex(), BlockThreads(), BlockIndex(), BlockIndexY(), GridBlocks(), LaneIndex(),
//   WarpIndex()
//   SyncBlock()                       must be called by all threads of the block, at the same point
//   SyncWarp()                        this and the next seven: by all 32 lanes of the warp, at the same point
//   ShuffleXor(v, mask), ShuffleDown(v, n), Shuffle(v, lane)
//                                     v has 4 bytes; ShuffleDown past the end returns v
//   Ballot(bool)                      bit i is the argument of lane i
//   LoadMatrix4(r, row)               ldmatrix.x4: lane 8i + j passes the address of row j of 8x8 matrix i,
//   LoadMatrix4Transposed(r, row)     16 bytes in shared memory; r[i]: the lane's two elements of matrix i
//   MmaBf16(d, a, b0, b1)             d[16x8] += a[16x16] * b[16x8]: mma.sync.m16n8k16, bf16 in, fp32 out
//
//   CopyAsync16(shared, global, valid)
//                                     copies 16 bytes, or 16 zeros if not valid; complete after a wait only
//   CommitAsync(), WaitAsync<N>()     closes a group of this thread's copies; waits for all but the N newest
//   Load16(p), Store16(p, Words4), Load8(p), Store8(p, Words2)
//                                     vector accesses, aligned to their size
//
//   Bf16, ToFloat(Bf16), ToBf16(float), PackBf16(low, high), LowFloat(pair), HighFloat(pair)
//                                     conversions round to nearest
//   Exp2, Exp, Log, SquareRoot, Fma, Mul, Add, Sub, Divide, Max, Min
//                                     Mul, Add and Sub are never fused
//   AtomicAdd(int*, int)              returns the old value
//   FloatBits(f), BitsFloat(u)
//
//   Launch(kernel, LaunchShape, stream, arguments...)
//                                     on the host; returns nullptr, or the error's text

#if defined(__CUDACC__)
#include "worker/engine/cuda/kernels/device_cuda.h"
#else
// The emulator's header; its folder is only on the include path of the tests' targets.
#include "simt/device_simt.h"
#endif
