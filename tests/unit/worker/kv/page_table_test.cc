#include "worker/kv/page_table.h"

#include <set>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace bfio::worker {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

PageTable Make(int32_t page_tokens, int64_t capacity, int32_t sequences) {
  auto table = PageTable::Create({page_tokens, capacity, sequences});
  EXPECT_TRUE(table.ok()) << table.status();
  return *std::move(table);
}

TEST(PagePoolTest, EachPageIsTakenOnceAndReturnedOnce) {
  PagePool pool(3);
  std::set<PageId> pages;
  while (const auto page = pool.Take()) pages.insert(*page);
  EXPECT_EQ(pages, (std::set<PageId>{0, 1, 2}));
  EXPECT_TRUE(pool.Return(1));
  EXPECT_FALSE(pool.Return(1)) << "a double free";
  EXPECT_FALSE(pool.Return(3)) << "never a page";
  EXPECT_FALSE(pool.Return(-1));
  EXPECT_EQ(pool.free(), 1);
  EXPECT_EQ(pool.Take(), 1);
}

TEST(PageTableTest, TakesPagesOnlyAsASequenceGrows) {
  PageTable table = Make(16, 160, 2);
  const SequenceIndex sequence = *table.Admit(100);
  EXPECT_THAT(table.pages(sequence), IsEmpty());
  EXPECT_EQ(table.free_tokens(), 60) << "but the capacity is reserved at once";
  ASSERT_TRUE(table.Grow(sequence, 16).ok());
  EXPECT_THAT(table.pages(sequence), SizeIs(1));
  ASSERT_TRUE(table.Grow(sequence, 17).ok());
  EXPECT_THAT(table.pages(sequence), SizeIs(2));
  ASSERT_TRUE(table.Grow(sequence, 5).ok()) << "what it holds stays";
  EXPECT_EQ(table.tokens(sequence), 17);
  ASSERT_TRUE(table.Grow(sequence, 100).ok());
  EXPECT_THAT(table.pages(sequence), SizeIs(7));
}

TEST(PageTableTest, GrowthBeyondTheReservationIsRefused) {
  PageTable table = Make(16, 160, 2);
  const SequenceIndex sequence = *table.Admit(20);
  const absl::Status status = table.Grow(sequence, 21);
  EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(std::string(status.message()), HasSubstr("reserved 20 tokens and needs 21"));
}

TEST(PageTableTest, AReservationGrowsWhileMemoryIsFree) {
  PageTable table = Make(16, 100, 2);
  const SequenceIndex a = *table.Admit(20), b = *table.Admit(50);
  ASSERT_TRUE(table.Extend(a, 50).ok());
  EXPECT_EQ(table.free_tokens(), 0);
  ASSERT_TRUE(table.Extend(a, 30).ok()) << "it has more";
  EXPECT_EQ(table.reserved(a), 50);
  EXPECT_EQ(table.Extend(a, 51).code(), absl::StatusCode::kResourceExhausted);
  ASSERT_TRUE(table.Grow(a, 50).ok());
  ASSERT_TRUE(table.Grow(b, 50).ok());
  ASSERT_TRUE(table.Release(b).ok());
  EXPECT_EQ(table.Extend(b, 10).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(table.free_tokens(), 50);
}

TEST(PageTableTest, AFullCacheOrNoSlotIsExhaustedAndTooLargeIsInvalid) {
  PageTable table = Make(16, 100, 2);
  EXPECT_EQ(table.Admit(101).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(table.Admit(0).status().code(), absl::StatusCode::kInvalidArgument);
  ASSERT_TRUE(table.Admit(60).ok());
  const auto refused = table.Admit(41);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("needs 41 KV tokens, 40 are free"));
  ASSERT_TRUE(table.Admit(1).ok());
  EXPECT_THAT(std::string(table.Admit(1).status().message()), HasSubstr("no free slot"));
}

// The router counts tokens and does not account for pages.
TEST(PageTableTest, EveryReservationThatFitsInTokensCanGrowToItsEnd) {
  PageTable table = Make(16, 100, 50);
  for (int i = 0; i < 50; ++i) {
    const auto sequence = table.Admit(2);
    ASSERT_TRUE(sequence.ok()) << sequence.status();
    ASSERT_TRUE(table.Grow(*sequence, 2).ok()) << i;
  }
  EXPECT_EQ(table.free_tokens(), 0);
  EXPECT_TRUE(table.Audit().ok());
}

TEST(PageTableTest, ReleaseGivesPagesAndReservationBackOnce) {
  PageTable table = Make(16, 160, 2);
  const SequenceIndex sequence = *table.Admit(100);
  ASSERT_TRUE(table.Grow(sequence, 50).ok());
  ASSERT_TRUE(table.Release(sequence).ok());
  EXPECT_EQ(table.free_tokens(), 160);
  EXPECT_EQ(table.stats().pages_taken, 0);
  EXPECT_EQ(table.Release(sequence).code(), absl::StatusCode::kFailedPrecondition) << "a double free";
  EXPECT_EQ(table.Release(99).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(table.Grow(sequence, 1).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(table.pages(sequence), IsEmpty());
  EXPECT_EQ(table.stats().peak_pages_taken, 4);
  EXPECT_EQ(table.stats().admitted_total, 1);
  EXPECT_EQ(table.stats().released_total, 1);
}

TEST(PageTableTest, BadOptionsAreRefusedByName) {
  const auto message = [](PageTableOptions options) {
    return std::string(PageTable::Create(options).status().message());
  };
  EXPECT_THAT(message({0, 10, 1}), HasSubstr("page size"));
  EXPECT_THAT(message({16, 0, 1}), HasSubstr("KV capacity"));
  EXPECT_THAT(message({16, 10, 0}), HasSubstr("sequences"));
  EXPECT_THAT(message({1, int64_t{1} << 40, 1}), HasSubstr("2^31 - 1 pages"));
}

}  // namespace
}  // namespace bfio::worker
