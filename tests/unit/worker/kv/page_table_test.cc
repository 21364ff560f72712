// The page table against a simple model: sequences as numbers, pages as a set.
#include "worker/kv/page_table.h"

#include "common/base/rng.h"
#include "gmock/gmock.h"

namespace bfio::worker {
namespace {

struct TableModel {
  int64_t capacity;
  int32_t max_sequences;
  struct Sequence {
    int64_t reserved, tokens;
  };
  std::map<SequenceIndex, Sequence> live;

  int64_t free() const {
    int64_t left = capacity;
    for (const auto& [index, sequence] : live) left -= sequence.reserved;
    return left;
  }
};

class Walk {
 public:
  explicit Walk(uint64_t seed)
      : rng_(seed),
        options_{1 + static_cast<int32_t>(rng_.Below(40)), 1 + static_cast<int64_t>(rng_.Below(2000)),
                 1 + static_cast<int32_t>(rng_.Below(30))},
        table_(*PageTable::Create(options_)),
        model_{options_.capacity_tokens, options_.max_sequences, {}} {}

  void Step() {
    switch (rng_.Below(5)) {
      case 0:
      case 1: return Admit();
      case 4: return Extend();
      case 2: return Grow();
      default: return Release();
    }
  }

  void Check() const {
    ASSERT_TRUE(table_.Audit().ok()) << table_.Audit();
    ASSERT_EQ(table_.free_tokens(), model_.free());
    ASSERT_EQ(table_.stats().sequences, static_cast<int32_t>(model_.live.size()));
    std::set<PageId> seen;
    int64_t resident = 0;
    for (const auto& [index, sequence] : model_.live) {
      ASSERT_EQ(table_.tokens(index), sequence.tokens);
      const auto pages = table_.pages(index);
      ASSERT_EQ(static_cast<int64_t>(pages.size()),
                (sequence.tokens + options_.page_tokens - 1) / options_.page_tokens);
      for (const PageId page : pages) ASSERT_TRUE(seen.insert(page).second) << "page " << page << " twice";
      resident += sequence.tokens;
    }
    ASSERT_EQ(table_.stats().resident_tokens, resident);
    ASSERT_EQ(table_.stats().pages_taken, static_cast<int32_t>(seen.size()));
  }

  void ReleaseAll() {
    for (size_t left = model_.live.size(); left > 0; --left) Release();
    ASSERT_TRUE(model_.live.empty());
  }

 private:
  void Admit() {
    const uint64_t most = rng_.Below(2) == 0 ? 3 : 1 + static_cast<uint64_t>(model_.capacity) / 3;
    const int64_t tokens = 1 + static_cast<int64_t>(rng_.Below(most));
    if (tokens > model_.capacity) {
      ASSERT_EQ(table_.Admit(tokens).status().code(), absl::StatusCode::kInvalidArgument);
      return;
    }
    const bool fits =
        tokens <= model_.free() && static_cast<int32_t>(model_.live.size()) < model_.max_sequences;
    const auto index = table_.Admit(tokens);
    ASSERT_EQ(index.status().code(), fits ? absl::StatusCode::kOk : absl::StatusCode::kResourceExhausted);
    if (!fits) return;
    ASSERT_TRUE(model_.live.insert({*index, {tokens, 0}}).second) << "index " << *index << " twice";
  }

  std::map<SequenceIndex, TableModel::Sequence>::iterator Any() {
    auto it = model_.live.begin();
    std::advance(it, rng_.Below(model_.live.size()));
    return it;
  }

  void Extend() {
    if (model_.live.empty()) return;
    const auto it = Any();
    const int64_t more = static_cast<int64_t>(rng_.Below(40));
    const bool fits = more <= model_.free();
    ASSERT_EQ(table_.Extend(it->first, it->second.reserved + more).ok(), fits);
    if (fits) it->second.reserved += more;
  }

  void Grow() {
    if (model_.live.empty()) return;
    const auto it = Any();
    const int64_t to = it->second.tokens + static_cast<int64_t>(rng_.Below(60));
    if (to > it->second.reserved) {
      ASSERT_EQ(table_.Grow(it->first, to).code(), absl::StatusCode::kOutOfRange);
      return;
    }
    const auto before = table_.pages(it->first);
    const std::vector<PageId> held(before.begin(), before.end());
    ASSERT_TRUE(table_.Grow(it->first, to).ok());
    it->second.tokens = to;
    const auto after = table_.pages(it->first);
    ASSERT_TRUE(std::equal(held.begin(), held.end(), after.begin())) << "a page moved";
  }

  void Release() {
    if (model_.live.empty()) return;
    const auto it = Any();
    ASSERT_TRUE(table_.Release(it->first).ok());
    ASSERT_EQ(table_.Release(it->first).code(), absl::StatusCode::kFailedPrecondition) << "a double free";
    ASSERT_EQ(table_.Grow(it->first, 1).code(), absl::StatusCode::kFailedPrecondition);
    ASSERT_EQ(table_.Extend(it->first, 1).code(), absl::StatusCode::kFailedPrecondition);
    ASSERT_TRUE(table_.pages(it->first).empty());
    model_.live.erase(it);
  }

  Rng rng_;
  const PageTableOptions options_;
  PageTable table_;
  TableModel model_;
};

TEST(PagePoolTest, EachPageIsTakenOnceAndReturnedOnce) {
  PagePool pool(3);
  std::set<PageId> pages;
  for (int i = 0; i < 4; ++i) {
    if (const auto page = pool.Take()) pages.insert(*page);
  }
  EXPECT_EQ(pages, (std::set<PageId>{0, 1, 2}));
  EXPECT_TRUE(pool.Return(1));
  EXPECT_FALSE(pool.Return(1)) << "a double free";
  EXPECT_FALSE(pool.Return(3)) << "never a page";
  EXPECT_FALSE(pool.Return(-1));
  EXPECT_EQ(pool.free(), 1);
  EXPECT_EQ(pool.Take(), 1);
}

TEST(PageTableTest, RefusalsNameTheNumbers) {
  auto table = PageTable::Create({16, 100, 2});
  const SequenceIndex sequence = *table->Admit(60);
  EXPECT_EQ(table->Grow(sequence, 61).message(), "sequence 0 reserved 60 tokens and needs 61");
  EXPECT_EQ(table->Admit(41).status().message(), "needs 41 KV tokens, 40 are free");
  ASSERT_TRUE(table->Admit(1).ok());
  EXPECT_EQ(table->Admit(1).status().message(), "no free slot");
  EXPECT_EQ(table->Admit(0).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(PageTableTest, BadOptionsAreRefusedByName) {
  const auto message = [](PageTableOptions options) {
    return std::string(PageTable::Create(options).status().message());
  };
  EXPECT_THAT(message({0, 10, 1}), ::testing::HasSubstr("page size"));
  EXPECT_THAT(message({16, 0, 1}), ::testing::HasSubstr("KV capacity"));
  EXPECT_THAT(message({16, 10, 0}), ::testing::HasSubstr("sequences"));
  EXPECT_THAT(message({1, int64_t{1} << 40, 1}), ::testing::HasSubstr("2^31 - 1 pages"));
}

TEST(PageTableTest, EveryPageHasOneOwnerUnderRandomOperations) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    Walk walk(seed);
    for (int i = 0; i < 400 && !::testing::Test::HasFatalFailure(); ++i) {
      walk.Step();
      walk.Check();
    }
    walk.ReleaseAll();
    walk.Check();
    if (::testing::Test::HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace bfio::worker
