#include "worker/engine/cpu/kernels.h"

namespace bfio::worker::cpu {

extern const Kernels kGenericKernels;
#ifdef BFIO_X86_KERNELS
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;
#endif

namespace {

struct Runnable {
  const Kernels* list[4] = {};

  Runnable() {
    int count = 0;
#ifdef BFIO_X86_KERNELS
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
      list[count++] = &kAvx512Kernels;
    }
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) list[count++] = &kAvx2Kernels;
#endif
    list[count] = &kGenericKernels;
  }
};

}  // namespace

const Kernels* const* RunnableKernels() {
  static const Runnable runnable;
  return runnable.list;
}

const Kernels& BestKernels() {
  return *RunnableKernels()[0];
}

}  // namespace bfio::worker::cpu
