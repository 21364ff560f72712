// The time of a batch: the papers' constants, long contexts.
#include "common/cost/batch_time.h"

#include "common/cost/step_time.h"
#include "gtest/gtest.h"

namespace bfio {
namespace {

TEST(BatchTimeTest, ThePapersConstants) {
  const BatchCost llama;
  EXPECT_NEAR(llama.Seconds(512), 0.1799, 1e-9);
  EXPECT_NEAR(llama.Capacity(512), 2846, 0.5);
  EXPECT_NEAR(llama.Capacity(512) / 200, 14.230, 5e-4) << "requests of 100 + 100 tokens per second";
  EXPECT_NEAR(llama.Seconds(64), 45.5e-3, 1e-12);
  EXPECT_NEAR(llama.Seconds(1), 45.5e-3, 1e-12);
  EXPECT_EQ(llama.Seconds(0), 0);
  // The paper's third version: CodeLlama-34B, with a staircase.
  const BatchCost code = {
      .c_s = 11.28e-3, .a_s_per_token = 35.47e-3 / 128, .b0_tokens = 0, .granule_tokens = 128};
  EXPECT_NEAR(code.Seconds(512), 0.15316, 1e-9);
  EXPECT_NEAR(code.Seconds(385), 0.15316, 1e-9) << "the same stair";
  EXPECT_NEAR(code.Capacity(512) / 200, 16.715, 1e-3);
}

TEST(BatchTimeTest, LongContexts) {
  const BatchCost cost = {.k1_s_per_pair = 1e-6, .k2_s_per_token = 1e-5};
  BatchLoad load;
  load.AddPrefill(20, 1000);
  load.AddDecode(500);
  load.AddDecode(30);
  EXPECT_EQ(load.tokens, 22);
  EXPECT_NEAR(cost.Seconds(load), 45.5e-3 + 1e-6 * 20 * 1010 + 1e-5 * 530, 1e-12);
  // A prompt in chunks attends to as many pairs as in one piece.
  BatchLoad whole, pieces;
  whole.AddPrefill(700, 0);
  for (int64_t done = 0; done < 700; done += 100) pieces.AddPrefill(100, done);
  EXPECT_DOUBLE_EQ(whole.prefill_pairs, pieces.prefill_pairs);
  EXPECT_NEAR(LongContextLlama70B().k1_s_per_pair, 4.2e-9, 1e-10);
  EXPECT_NEAR(LongContextLlama70B().k2_s_per_token, 8.04e-8, 1e-9);
}

TEST(StepCostTest, DefaultsAreThePapersConstantsAndPrefillTokensAddTheirCost) {
  const StepCost cost;
  EXPECT_NEAR(cost.c_s, (0.6e-3 * 72 + 35e-3) / 16, 1e-12);
  EXPECT_NEAR(cost.tl_s_per_token, 1.5 * 2 * 576 * 61e-6 / (1 << 20), 1e-12);
  EXPECT_DOUBLE_EQ(cost.StepSeconds(100000), 4.8875e-3 + 1.00525e-2);
  const StepCost all = {.c_s = 1, .tl_s_per_token = 0.5, .prefill_s_per_token = 0.25};
  EXPECT_DOUBLE_EQ(all.StepSeconds(2, 4), 3);
}

}  // namespace
}  // namespace bfio
