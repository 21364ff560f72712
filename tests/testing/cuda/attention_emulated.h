// Attention on the emulated GPU: tests/testing/simt runs the kernels of
// worker/engine/cuda/kernels/attention.cuh.
//
// Threads: as simt/machine.h.
#ifndef BFIO_TESTS_TESTING_CUDA_ATTENTION_EMULATED_H_
#define BFIO_TESTS_TESTING_CUDA_ATTENTION_EMULATED_H_

#include <string>
#include <vector>

#include "tests/testing/cuda/attention_case.h"

namespace bfio::testing {

// An AttentionRunner. Its device arrays are exactly as long as the step's plan requires.
std::string EmulateAttention(const AttentionCase& attention_case, std::vector<worker::gpu::Bf16>* out);

}  // namespace bfio::testing

#endif  // BFIO_TESTS_TESTING_CUDA_ATTENTION_EMULATED_H_
