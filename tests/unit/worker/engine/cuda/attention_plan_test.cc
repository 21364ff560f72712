// Invariants of the attention planner on random steps.
#include "worker/engine/cuda/attention_plan.h"

#include <numeric>
#include <random>

#include "gmock/gmock.h"
#include "worker/engine/cuda/step_inputs.h"

namespace bfio::worker::gpu {
namespace {

using ::testing::HasSubstr;

struct Instance {
  AttentionShape shape;
  AttentionLimits limits;
  StepPlan step;
};

// A random step; half of the time the limits are exactly what it needs.
Instance RandomInstance(uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto below = [&](int64_t n) { return static_cast<int32_t>(random() % n); };
  Instance instance;
  const int32_t kv_heads = 1 + below(8);
  instance.shape = {kv_heads * (1 + below(16)), kv_heads, 16 << below(4), 16 << below(3)};
  instance.step.Clear();
  const int32_t runs = 1 + below(12);
  for (int32_t i = 0; i < runs; ++i) {
    const int32_t tokens = below(2) == 0 ? 1 : below(3) == 0 ? 1 + below(16) : 1 + below(300);
    const int32_t first = below(4) == 0 ? 256 * below(5) : below(6) == 0 ? below(20000) : below(1500);
    const int32_t page_count = (first + tokens + instance.shape.page_tokens - 1) / instance.shape.page_tokens;
    instance.step.AddRun(i, first, std::vector<uint32_t>(tokens), std::vector<PageId>(page_count, i), true);
    instance.limits.kv_tokens += first + tokens;
  }
  const bool tight = below(2) == 0;
  instance.limits.rows = instance.step.rows() + (tight ? 0 : 100);
  instance.limits.runs = runs + (tight ? 0 : 10);
  instance.limits.kv_tokens += tight ? 0 : 10000;
  instance.limits.blocks = below(3) * 130;
  return instance;
}

// For a row, a range [begin, end) of positions and, if its result is a part, the part's slot (else -1).
struct Piece {
  int32_t begin;
  int32_t end;
  int64_t slot;
  bool is_long;
};
std::map<int32_t, std::vector<Piece>> PiecesByRow(const AttentionPlan& plan) {
  std::map<int32_t, std::vector<Piece>> pieces;
  const auto add = [&](const AttentionItem& item, bool is_long) {
    // Parts cover one chunk each; a final result is one piece.
    const int32_t size = item.part < 0 ? item.end - item.begin : kChunkTokens;
    for (int32_t begin = item.begin, chunk = 0; begin < item.end; begin += size, ++chunk) {
      for (int32_t i = 0; i < item.tokens; ++i) {
        const int32_t end = std::min({item.end, begin + size, item.position + i + 1});
        if (end <= begin) continue;  // outside of the causal mask
        const int64_t slot = item.part < 0 ? -1 : item.part + static_cast<int64_t>(chunk) * item.tokens + i;
        pieces[item.row + i].push_back({begin, end, slot, is_long});
      }
    }
  };
  for (const AttentionItem& item : plan.short_items()) add(item, false);
  for (const AttentionItem& item : plan.long_items()) add(item, true);
  for (auto& [row, of_row] : pieces) {
    std::sort(of_row.begin(), of_row.end(), [](const Piece& a, const Piece& b) { return a.begin < b.begin; });
  }
  return pieces;
}

class AttentionPlanProperty : public ::testing::TestWithParam<uint64_t> {
 protected:
  const Instance instance_ = RandomInstance(GetParam());
  AttentionPlan plan_{instance_.shape, instance_.limits};
};
INSTANTIATE_TEST_SUITE_P(Seeds, AttentionPlanProperty, ::testing::Range<uint64_t>(0, 200));

TEST_P(AttentionPlanProperty, EveryRowSeesEachPositionOnceInFixedChunksThatAreCombinedInOrder) {
  ASSERT_TRUE(plan_.Build(instance_.step).ok());
  // Every slot belongs to one part only, also for tokens that see nothing of a chunk.
  std::set<int64_t> written;
  for (const auto& items : {plan_.short_items(), plan_.long_items()}) {
    for (const AttentionItem& item : items) {
      if (item.part < 0) continue;
      const int32_t chunks = (item.end - item.begin + kChunkTokens - 1) / kChunkTokens;
      for (int32_t i = 0; i < chunks * item.tokens; ++i) {
        EXPECT_TRUE(written.insert(item.part + i).second);
        EXPECT_LT(item.part + i, plan_.parts());
      }
    }
  }
  std::map<int32_t, AttentionCombine> combines;
  for (const AttentionCombine& combine : plan_.combines()) {
    EXPECT_TRUE(combines.emplace(combine.row, combine).second);
  }
  const auto pieces = PiecesByRow(plan_);
  ASSERT_EQ(static_cast<int32_t>(pieces.size()), instance_.step.rows());
  for (const auto& [row, of_row] : pieces) {
    const int32_t length = instance_.step.positions[row] + 1;
    ASSERT_EQ(combines.count(row), of_row[0].slot < 0 ? 0u : 1u);
    if (of_row[0].slot < 0) {
      ASSERT_EQ(of_row.size(), 1u);
      EXPECT_EQ(std::pair(of_row[0].begin, of_row[0].end), std::pair(0, length));
      EXPECT_TRUE(of_row[0].is_long || length <= kChunkTokens);
      continue;
    }
    const AttentionCombine& combine = combines.at(row);
    ASSERT_EQ(combine.parts, static_cast<int32_t>(of_row.size()));
    int32_t reached = 0;
    for (int32_t i = 0; i < combine.parts; ++i) {
      EXPECT_EQ(of_row[i].slot, combine.part + static_cast<int64_t>(i) * combine.stride);
      EXPECT_EQ(of_row[i].begin, reached);
      EXPECT_EQ(of_row[i].begin % kChunkTokens, 0);
      reached = of_row[i].end;
      EXPECT_EQ(reached, std::min(length, of_row[i].begin + kChunkTokens));
    }
    EXPECT_EQ(reached, length);
  }
}

TEST_P(AttentionPlanProperty, ItemsHaveTheRightRowsPositionsAndPagesTheLargestFirst) {
  ASSERT_TRUE(plan_.Build(instance_.step).ok());
  const auto check = [&](absl::Span<const AttentionItem> items, int32_t tile_rows) {
    for (const AttentionItem& item : items) {
      EXPECT_GE(item.tokens, 1);
      EXPECT_LE(item.tokens * instance_.shape.group(), tile_rows);
      EXPECT_LT(item.begin, item.end);
      const int32_t run = instance_.step.row_runs[item.row];
      EXPECT_EQ(instance_.step.row_runs[item.row + item.tokens - 1], run);
      EXPECT_EQ(item.position, instance_.step.positions[item.row]);
      EXPECT_EQ(item.first_page, instance_.step.run_pages[run]);
      EXPECT_LE(item.end, item.position + item.tokens);
    }
    EXPECT_TRUE(std::is_sorted(
        items.begin(), items.end(),
        [](const AttentionItem& a, const AttentionItem& b) { return a.end - a.begin > b.end - b.begin; }));
  };
  check(plan_.short_items(), kShortTileRows);
  check(plan_.long_items(), kLongTileRows);
}

TEST_P(AttentionPlanProperty, StaysWithinItsSizesAndItsMemory) {
  const AttentionSizes sizes = SizesFor(instance_.shape, instance_.limits);
  ASSERT_TRUE(plan_.Build(StepPlan{.run_rows = {0}, .run_pages = {0}}).ok());
  EXPECT_EQ(plan_.counts().short_items + plan_.counts().long_items + plan_.counts().combines, 0);
  const auto memory = [&] {
    return std::tuple(plan_.short_items().data(), plan_.long_items().data(), plan_.combines().data());
  };
  const auto before = memory();
  for (int again = 0; again < 2; ++again) {
    ASSERT_TRUE(plan_.Build(instance_.step).ok());
    EXPECT_LE(plan_.counts().short_items, sizes.short_items);
    EXPECT_LE(plan_.counts().long_items, sizes.long_items);
    EXPECT_LE(plan_.counts().combines, sizes.combines);
    EXPECT_LE(plan_.parts(), sizes.parts);
    EXPECT_EQ(memory(), before);
  }
}

TEST_P(AttentionPlanProperty, AStepBeyondALimitIsRefused) {
  int64_t kv_tokens = 0;
  for (int32_t run = 0; run < instance_.step.runs(); ++run) {
    kv_tokens += instance_.step.positions[instance_.step.run_rows[run + 1] - 1] + 1;
  }
  const AttentionLimits exact = {instance_.step.rows(), instance_.step.runs(), kv_tokens, 100};
  EXPECT_TRUE(AttentionPlan(instance_.shape, exact).Build(instance_.step).ok());
  for (int which = 0; which < 3; ++which) {
    AttentionLimits less = exact;
    if (which == 0) --less.rows;
    if (which == 1) --less.runs;
    if (which == 2) --less.kv_tokens;
    AttentionPlan plan(instance_.shape, less);
    EXPECT_EQ(plan.Build(instance_.step).code(), absl::StatusCode::kResourceExhausted);
    EXPECT_EQ(plan.counts().short_items + plan.counts().long_items + plan.counts().combines, 0);
  }
}

TEST(AttentionPlan, ShortRunsWithoutMemoryForPartsBecomeLongOnes) {
  const AttentionShape shape = {4, 1, 128, 16};
  StepPlan step;
  step.Clear();
  // 4 tokens make a short tile, but one of 300 chunks each.
  for (int32_t i = 0; i < 5; ++i) {
    step.AddRun(i, 300 * kChunkTokens - 4, std::vector<uint32_t>(4), std::vector<PageId>(4800), true);
  }
  step.AddRun(5, 1000 * kChunkTokens - 1, std::vector<uint32_t>(1), std::vector<PageId>(16000), true);
  AttentionPlan plan(shape, {step.rows(), step.runs(), 2500 * kChunkTokens});
  ASSERT_TRUE(plan.Build(step).ok());
  // Slots for 2,500 chunks + 6 runs + 4,096: 1,000 are taken by the decode, 1,200 by each of four short runs.
  EXPECT_EQ(plan.parts(), 5800);
  EXPECT_EQ(plan.counts().long_items, 1);
  EXPECT_EQ(plan.counts().short_items, 2200);
}

TEST(AttentionPlan, FewLongTilesAreCutUntilTheBlocksHaveWork) {
  const AttentionShape shape = {8, 2, 128, 16};
  StepPlan step;
  step.Clear();
  // Two tiles of 16 tokens with 10 chunks each give 40 work items for both KV heads if cut to single chunks.
  step.AddRun(0, 10 * kChunkTokens - 32, std::vector<uint32_t>(32), std::vector<PageId>(160), true);
  const auto longest_piece = [&](int32_t blocks) {
    AttentionPlan plan(shape, {step.rows(), step.runs(), 10 * kChunkTokens, blocks});
    EXPECT_TRUE(plan.Build(step).ok());
    return std::pair(plan.counts().long_items, plan.long_items()[0].end - plan.long_items()[0].begin);
  };
  EXPECT_EQ(longest_piece(0), std::pair(2, 10 * kChunkTokens));
  EXPECT_EQ(longest_piece(4), std::pair(2, 10 * kChunkTokens));
  EXPECT_EQ(longest_piece(8), std::pair(4, 5 * kChunkTokens));
  EXPECT_EQ(longest_piece(10), std::pair(6, 4 * kChunkTokens));
  EXPECT_EQ(longest_piece(1000), std::pair(20, 1 * kChunkTokens));
}

TEST(AttentionPlan, ShapesWithoutKernelsAreRefusedByName) {
  const std::pair<AttentionShape, std::string> rows[] = {{{32, 8, 128, 16}, "OK"},
                                                         {{16, 1, 16, 64}, "OK"},
                                                         {{32, 8, 96, 16}, "head_dim is 96"},
                                                         {{17, 1, 128, 16}, "17 query heads and 1 KV heads"},
                                                         {{6, 4, 128, 16}, "6 query heads and 4 KV heads"},
                                                         {{0, 0, 128, 16}, "0 query heads"},
                                                         {{4, 4, 128, 8}, "pages of 8 tokens"},
                                                         {{4, 4, 128, 128}, "pages of 128 tokens"}};
  for (const auto& [shape, text] : rows) EXPECT_THAT(CheckAttentionShape(shape).ToString(), HasSubstr(text));
}

// --- a step's inputs ---

// The host's part of a CUDA step: buckets of rows, and the block of a step's inputs.

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
