// Cases for the attention kernels, and what must come out: for the emulator and for a real GPU.
//
// Purpose: a step over random sequences, with its queries, cache and expected results on the host. What a
// sequence's token holds depends on the sequence's seed and the token's position alone, so that the same
// token can be computed in different steps and batches, and compared. Pure; values.
#ifndef BFIO_TESTS_TESTING_CUDA_ATTENTION_CASE_H_
#define BFIO_TESTS_TESTING_CUDA_ATTENTION_CASE_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "worker/engine/cuda/attention_plan.h"
#include "worker/engine/cuda/kernels/attention.h"

namespace bfio::testing {

// Tokens [first, first + tokens) of the sequence `seed`.
struct AttentionRun {
  uint64_t seed = 0;
  int32_t first = 0;
  int32_t tokens = 1;
};

struct AttentionCase {
  std::string name;
  worker::gpu::AttentionShape shape;
  std::vector<AttentionRun> runs;
  // Chooses which pages hold what.
  uint64_t page_seed = 1;
  worker::gpu::AttentionGrid grid = {3, 5, 2};
  // AttentionLimits.blocks: how far long tiles are cut.
  int32_t blocks = 0;
};

// A case's arrays, in the layout that the kernels take.
struct AttentionData {
  worker::StepPlan step;
  // [rows][q_stride]; what lies between rows is NaN.
  std::vector<worker::gpu::Bf16> queries;
  int32_t q_stride = 0;
  // Pools; what no token has written is NaN.
  std::vector<worker::gpu::Bf16> keys, values;
  float scale = 0;
};
AttentionData MakeAttentionData(const AttentionCase& attention_case);

// By row, query head and column: the result, and the largest error that rounding explains: weights and
// results are rounded to bf16, each by at most 2^-8 of itself.
struct AttentionExpectation {
  std::vector<double> out;
  std::vector<double> tolerance;
};
AttentionExpectation ExpectedAttention(const AttentionCase& attention_case);

// Computes a case; an error's text, or empty and [rows][q_heads][head_dim] in `out`.
using AttentionRunner = std::function<std::string(const AttentionCase&, std::vector<worker::gpu::Bf16>* out)>;

// Empty, or the first difference between what `run` computes and what is expected.
std::string CheckAttention(const AttentionCase& attention_case, const AttentionRunner& run);

// Empty, or the first difference, in bits, between the results of the same tokens in both cases. Tokens that
// are in one case only are not compared; comparing none is a difference.
std::string CheckSameBits(const AttentionCase& one, const AttentionCase& other, const AttentionRunner& run);

// The cases that every device must pass. The emulator's are small; `large` adds what only a GPU can do in
// time.
std::vector<AttentionCase> AttentionCases(bool large);
// Pairs whose common tokens must be the same to the last bit.
std::vector<std::pair<AttentionCase, AttentionCase>> SameBitsCases(bool large);

}  // namespace bfio::testing

#endif  // BFIO_TESTS_TESTING_CUDA_ATTENTION_CASE_H_
