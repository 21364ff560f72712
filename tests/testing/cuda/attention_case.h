// Test cases for the attention kernels with expected results, for the emulator and for a GPU.
//
// Purpose: a step over random sequences, with its queries, cache and expected results on the host. The
// content of a sequence's token depends only on the sequence's seed and the token's position, so that the
// same token can be computed in different steps and batches, and compared. Pure; values.
#pragma once

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
  // Determines which page holds which tokens.
  uint64_t page_seed = 1;
  worker::gpu::AttentionGrid grid = {3, 5, 2};
  // AttentionLimits.blocks: into how many parts long tiles are split.
  int32_t blocks = 0;
};

// The arrays of a case, in the layout that the kernels take.
struct AttentionData {
  worker::StepPlan step;
  // [rows][q_stride]; values between rows are NaN.
  std::vector<worker::gpu::Bf16> queries;
  int32_t q_stride = 0;
  // Page pools; entries that no token has written are NaN.
  std::vector<worker::gpu::Bf16> keys, values;
  float scale = 0;
};
AttentionData MakeAttentionData(const AttentionCase& attention_case);

// By row, query head and column: the result, and the largest error that rounding explains. Weights and
// results are rounded to bf16, each with a relative error of at most 2^-8.
struct AttentionExpectation {
  std::vector<double> out;
  std::vector<double> tolerance;
};
AttentionExpectation ExpectedAttention(const AttentionCase& attention_case);

// Computes a case. Returns the text of an error; or empty, with [rows][q_heads][head_dim] in `out`.
using AttentionRunner = std::function<std::string(const AttentionCase&, std::vector<worker::gpu::Bf16>* out)>;

// Empty, or the first difference between the result of `run` and the expected result.
std::string CheckAttention(const AttentionCase& attention_case, const AttentionRunner& run);

// Empty, or the first bitwise difference between the results of tokens that both cases contain. Other tokens
// are not compared; it is an error if there are none in common.
std::string CheckSameBits(const AttentionCase& one, const AttentionCase& other, const AttentionRunner& run);

// Cases that every device must pass. Those for the emulator are small; `large` adds cases that are only fast
// enough on a GPU.
std::vector<AttentionCase> AttentionCases(bool large);
// Pairs of cases whose common tokens must have bitwise equal results.
std::vector<std::pair<AttentionCase, AttentionCase>> SameBitsCases(bool large);

}  // namespace bfio::testing
