// The host's part of a CUDA step: buckets of rows, and the block of a step's inputs.
#include "worker/engine/cuda/step_inputs.h"

#include <cstring>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/engine/cuda/row_buckets.h"

namespace bfio::worker::gpu {
namespace {

using ::testing::ElementsAre;

TEST(RowBucketsTest, PowersOfTwoAndMidpointsFromSixtyFourOn) {
  EXPECT_THAT(RowBuckets(1).sizes(), ElementsAre(1));
  EXPECT_THAT(RowBuckets(6).sizes(), ElementsAre(1, 2, 4, 6));
  EXPECT_THAT(RowBuckets(8).sizes(), ElementsAre(1, 2, 4, 8));
  EXPECT_THAT(RowBuckets(100).sizes(), ElementsAre(1, 2, 4, 8, 16, 32, 64, 96, 100));
  EXPECT_THAT(RowBuckets(256).sizes(), ElementsAre(1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256));
}

TEST(RowBucketsTest, TheSmallestThatHoldsTheRows) {
  for (const int32_t max : {1, 2, 3, 63, 64, 65, 528, 1 << 20}) {
    const RowBuckets buckets(max);
    for (int i = 1; i < buckets.count(); ++i) EXPECT_LT(buckets.sizes()[i - 1], buckets.sizes()[i]);
    EXPECT_EQ(buckets.sizes().back(), max);
    for (int32_t rows = 1; rows <= std::min(max, 1000); ++rows) {
      const int index = buckets.Index(rows);
      EXPECT_GE(buckets.sizes()[index], rows);
      if (index > 0) {
        EXPECT_LT(buckets.sizes()[index - 1], rows);
      }
    }
  }
}

constexpr AttentionShape kShape = {4, 2, 16, 16};
constexpr AttentionLimits kLimits = {64, 8, 100 * 16};

StepLimits Limits() {
  return {kLimits.rows, kLimits.runs, 100, SizesFor(kShape, kLimits)};
}

struct Block {
  explicit Block(const StepLayout& layout)
      : words(static_cast<size_t>(layout.bytes()) / 8 + 2, ~uint64_t{0}) {}
  void* data() { return reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(words.data()) + 15) / 16 * 16); }
  std::vector<uint64_t> words;
};

TEST(StepInputsTest, ArraysDoNotOverlapAndAreAligned) {
  const StepLayout layout(Limits());
  Block block(layout);
  const StepInputs in = layout.At(block.data());
  const StepLimits limits = Limits();
  const auto* const begin = static_cast<const char*>(block.data());
  const char* end = begin;
  const auto check = [&](const auto* array, int64_t count) {
    const auto* const at = reinterpret_cast<const char*>(array);
    EXPECT_GE(at, end);
    EXPECT_EQ((at - begin) % 16, 0);
    end = at + count * static_cast<int64_t>(sizeof(*array));
  };
  check(in.counts, 1);
  check(in.attention_counts, 1);
  check(in.token_ids, limits.rows);
  check(in.positions, limits.rows);
  check(in.row_pages, limits.rows);
  check(in.logit_rows, limits.draws);
  check(in.draws, limits.draws);
  check(in.combines, limits.attention.combines);
  check(in.long_items, limits.attention.long_items);
  check(in.short_items, limits.attention.short_items);
  check(in.numbers, layout.number_limit());
  EXPECT_EQ(end - begin, layout.bytes());
}

TEST(StepInputsTest, AStepsPlanIsLaidOut) {
  StepPlan plan;
  plan.Clear();
  const std::vector<uint32_t> decode = {7}, prompt = {1, 2, 3, 4};
  const std::vector<PageId> decode_pages = {9, 8, 5}, prompt_pages = {3, 4};
  plan.AddRun(0, 33, decode, decode_pages, true);
  plan.AddRun(1, 14, prompt, prompt_pages, false);
  plan.AddRun(2, 0, decode, {prompt_pages.data(), 1}, true);
  AttentionPlan attention(kShape, kLimits);
  ASSERT_TRUE(attention.Build(plan).ok());
  const std::vector<uint32_t> ends = {5, 1000, 6, 5};
  std::vector<Draw> draws(2);
  draws[0].ends = ends;
  draws[1].ends = ends;
  draws[1].sampling.temperature = 0.5;
  draws[1].sampling.top_p = 0.9;
  draws[1].sampling.top_k = 40;
  draws[1].sampling.seed = 11;
  draws[1].index = 3;
  const StepLayout layout(Limits());
  Block block(layout);
  const int64_t bytes = FillStepInputs(plan, attention, draws, 1000, 16, layout, block.data());
  const StepInputs in = layout.At(block.data());
  EXPECT_EQ(in.counts->rows, 6);
  EXPECT_EQ(in.counts->draws, 2);
  EXPECT_EQ(in.attention_counts->short_items, attention.counts().short_items);
  EXPECT_EQ(std::vector<uint32_t>(in.token_ids, in.token_ids + 6), plan.token_ids);
  EXPECT_EQ(std::vector<int32_t>(in.positions, in.positions + 6), plan.positions);
  EXPECT_THAT(std::vector<int32_t>(in.row_pages, in.row_pages + 6), ElementsAre(5, 3, 3, 4, 4, 3));
  EXPECT_THAT(std::vector<int32_t>(in.logit_rows, in.logit_rows + 2), ElementsAre(0, 5));
  EXPECT_EQ(std::memcmp(in.short_items, attention.short_items().data(),
                        attention.short_items().size() * sizeof(AttentionItem)),
            0);
  EXPECT_THAT(std::vector<int32_t>(in.numbers, in.numbers + 10), ElementsAre(9, 8, 5, 3, 4, 3, 5, 6, 5, 6));
  EXPECT_EQ(bytes, layout.BytesWith(10));
  EXPECT_EQ(in.draws[0].inverse_temperature, 0);
  EXPECT_EQ(in.draws[0].top_k, 0);
  EXPECT_EQ(in.draws[0].first_end, 6);
  EXPECT_EQ(in.draws[0].end_count, 2);
  EXPECT_EQ(in.draws[1].first_end, 8);
  EXPECT_EQ(in.draws[1].end_count, 2);
  EXPECT_EQ(in.draws[1].inverse_temperature, 2);
  EXPECT_EQ(in.draws[1].top_p, 0.9);
  EXPECT_EQ(in.draws[1].top_k, 40);
  EXPECT_EQ(in.draws[1].uniform, DrawUniform(11, 3));
}

TEST(StepInputsTest, AStepOfOnlyDrawsHasAsManyRowsAsDraws) {
  const std::vector<uint32_t> ends = {5, 1000, 6};
  std::vector<Draw> draws(3);
  draws[1].ends = draws[2].ends = ends;
  const StepLayout layout(Limits());
  Block block(layout);
  EXPECT_EQ(FillDrawInputs(draws, 1000, layout, block.data()), layout.BytesWith(4));
  const StepInputs in = layout.At(block.data());
  EXPECT_EQ(in.counts->rows, 3);
  EXPECT_EQ(in.counts->draws, 3);
  EXPECT_EQ(in.attention_counts->short_items + in.attention_counts->long_items, 0);
  EXPECT_THAT(std::vector<int32_t>(in.numbers, in.numbers + 4), ElementsAre(5, 6, 5, 6));
  EXPECT_EQ(in.draws[0].end_count, 0);
  EXPECT_EQ(in.draws[2].first_end, 2);
  EXPECT_EQ(in.draws[2].end_count, 2);
}

TEST(StepInputsTest, EndTokensBeyondTheCapacityAreLeftOut) {
  StepPlan plan;
  plan.Clear();
  const std::vector<PageId> pages = {1};
  std::vector<Draw> draws(kLimits.runs);
  std::vector<uint32_t> ends;
  for (uint32_t id = 0; id < 500; ++id) ends.push_back(id);
  const uint32_t token = 1;
  for (int32_t i = 0; i < kLimits.runs; ++i) {
    plan.AddRun(i, 0, {&token, 1}, pages, true);
    draws[i].ends = ends;
  }
  AttentionPlan attention(kShape, kLimits);
  ASSERT_TRUE(attention.Build(plan).ok());
  const StepLayout layout(Limits());
  Block block(layout);
  EXPECT_EQ(FillStepInputs(plan, attention, draws, 1000, 16, layout, block.data()), layout.bytes());
  const StepInputs in = layout.At(block.data());
  EXPECT_EQ(in.draws[0].end_count, 500);
  EXPECT_EQ(in.draws[1].end_count, layout.number_limit() - 500 - kLimits.runs);
  EXPECT_EQ(in.draws[2].end_count, 0);
}

TEST(StepInputsTest, TemperaturesBeyondFp32AreStillSampled) {
  StepPlan plan;
  plan.Clear();
  const std::vector<PageId> pages = {1};
  const uint32_t token = 1;
  std::vector<Draw> draws(2);
  draws[0].sampling.temperature = 1e300;
  draws[1].sampling.temperature = 1e-300;
  for (int i = 0; i < 2; ++i) plan.AddRun(i, 0, {&token, 1}, pages, true);
  AttentionPlan attention(kShape, kLimits);
  ASSERT_TRUE(attention.Build(plan).ok());
  const StepLayout layout(Limits());
  Block block(layout);
  FillStepInputs(plan, attention, draws, 1000, 16, layout, block.data());
  const StepInputs in = layout.At(block.data());
  EXPECT_GT(in.draws[0].inverse_temperature, 0);
  EXPECT_LT(in.draws[1].inverse_temperature, std::numeric_limits<float>::max());
}

}  // namespace
}  // namespace bfio::worker::gpu
