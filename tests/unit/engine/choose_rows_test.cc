#include "worker/scheduler/choose_rows.h"

#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace bfio::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<std::pair<int, int>> Choose(const std::vector<int64_t>& pending, int64_t step_tokens) {
  std::vector<Chunk> chunks;
  ChooseRows(pending, step_tokens, chunks);
  std::vector<std::pair<int, int>> pairs;
  for (const Chunk& chunk : chunks) pairs.emplace_back(chunk.which, chunk.rows);
  return pairs;
}

TEST(ChooseRowsTest, NothingToDoIsAnEmptyBatch) {
  EXPECT_THAT(Choose({}, 512), IsEmpty());
}

TEST(ChooseRowsTest, DecodesComeFirstThenPromptsInTheOrderOfAdmission) {
  EXPECT_THAT(Choose({100, 1, 30, 1}, 512),
              ElementsAre(std::pair(1, 1), std::pair(3, 1), std::pair(0, 100), std::pair(2, 30)));
}

TEST(ChooseRowsTest, TheOldestPromptIsCutWhereTheBudgetEndsAndYoungerOnesWait) {
  EXPECT_THAT(Choose({1, 1000, 30}, 101), ElementsAre(std::pair(0, 1), std::pair(1, 100)));
  EXPECT_THAT(Choose({1, 90, 30}, 101), ElementsAre(std::pair(0, 1), std::pair(1, 90), std::pair(2, 10)));
}

TEST(ChooseRowsTest, EveryDecodeRunsWhateverTheBudgetAndPromptsAreNotStarved) {
  std::vector<int64_t> pending(100, 1);
  pending.push_back(50);
  const auto chosen = Choose(pending, 8);
  ASSERT_EQ(chosen.size(), 101u);
  EXPECT_EQ(chosen.back(), std::pair(100, static_cast<int>(kMinPrefillRows)));
  EXPECT_EQ(MaxRows(101, 8), 101 + kMinPrefillRows);
}

}  // namespace
}  // namespace bfio::worker
