// The host's part of a CUDA step: buckets of rows, and the block of a step's inputs.
#include "worker/engine/cuda/step_inputs.h"

#include <numeric>

#include "gtest/gtest.h"

namespace bfio::worker::gpu {
namespace {

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

// The inputs of a step in which each run draws from one token.
class DrawInputs {
 public:
  explicit DrawInputs(const std::vector<Draw>& draws) {
    StepPlan plan;
    plan.Clear();
    const uint32_t token = 1;
    const std::vector<PageId> pages = {1};
    for (size_t i = 0; i < draws.size(); ++i)
      plan.AddRun(static_cast<int32_t>(i), 0, {&token, 1}, pages, true);
    AttentionPlan attention(kShape, kLimits);
    EXPECT_TRUE(attention.Build(plan).ok());
    bytes = FillStepInputs(plan, attention, draws, 1000, 16, layout, block_.data());
    in = layout.At(block_.data());
  }
  const StepLayout layout{Limits()};
  int64_t bytes = 0;
  StepInputs in;

 private:
  Block block_{layout};
};

TEST(StepInputsTest, EndTokensBeyondTheCapacityAreLeftOut) {
  std::vector<uint32_t> ends(500);
  std::iota(ends.begin(), ends.end(), 0);
  std::vector<Draw> draws(kLimits.runs);
  for (Draw& draw : draws) draw.ends = ends;
  const DrawInputs step(draws);
  EXPECT_EQ(step.bytes, step.layout.bytes());
  EXPECT_EQ(step.in.draws[0].end_count, 500);
  EXPECT_EQ(step.in.draws[1].end_count, step.layout.number_limit() - 500 - kLimits.runs);
  EXPECT_EQ(step.in.draws[2].end_count, 0);
}

TEST(StepInputsTest, TemperaturesBeyondFp32AreStillSampled) {
  std::vector<Draw> draws(2);
  draws[0].sampling.temperature = 1e300;
  draws[1].sampling.temperature = 1e-300;
  const DrawInputs step(draws);
  EXPECT_GT(step.in.draws[0].inverse_temperature, 0);
  EXPECT_LT(step.in.draws[1].inverse_temperature, std::numeric_limits<float>::max());
}

}  // namespace
}  // namespace bfio::worker::gpu
