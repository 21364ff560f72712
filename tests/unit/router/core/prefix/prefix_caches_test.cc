#include "router/core/prefix/prefix_caches.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <list>
#include <set>
#include <utility>
#include <vector>

#include "common/base/rng.h"

namespace bfio::core {
namespace {

constexpr int64_t kTokens = kPrefixBlockTokens;
const std::vector<uint64_t> kPrompt = {1, 2, 3, 4};

// The caches of these workers; by default of two.
PrefixCaches Of(const std::vector<PrefixCaches::Member>& members = {{7, true, 100 * kTokens},
                                                                    {8, true, 100 * kTokens}}) {
  PrefixCaches caches;
  caches.Open(members);
  return caches;
}

TEST(PrefixCaches, EachWorkerHasWhatWasPlacedThere) {
  PrefixCaches caches = Of();
  caches.Placed(1, kPrompt, 5 * kTokens);
  EXPECT_EQ(caches.Find(0, kPrompt, 5 * kTokens), 0);
  EXPECT_EQ(caches.Find(1, kPrompt, 5 * kTokens), 4 * kTokens);
  EXPECT_EQ(caches.Expected(1, kPrompt, 5 * kTokens), 4 * kTokens);
  EXPECT_EQ(caches.Find(1, kPrompt, 4 * kTokens), 4 * kTokens - 1) << "the last token is computed";
  PrefixCaches without = Of({{1, false, 100 * kTokens}});
  EXPECT_FALSE(without.any());
  without.Placed(0, kPrompt, 5 * kTokens);
  without.Ended(0, kPrompt, 10);
  EXPECT_EQ(without.Find(0, kPrompt, 5 * kTokens), 0);
}

TEST(PrefixCaches, AWorkerThatTellsItsBlocksIsBelieved) {
  PrefixCaches caches = Of({{7, true, 2 * kTokens}, {8, false, 2 * kTokens}});
  for (WorkerIndex worker : {0, 1})
    caches.Changed(worker, std::vector<PrefixChange>{{1, true}, {2, true}, {3, true}});
  EXPECT_EQ(caches.Find(0, kPrompt, 5 * kTokens), 3 * kTokens) << "it knows how many it holds";
  EXPECT_EQ(caches.Find(1, kPrompt, 5 * kTokens), 0) << "it has no cache";
  caches.Placed(0, kPrompt, 4 * kTokens);
  caches.Ended(0, kPrompt, 100 * kTokens);
  EXPECT_EQ(caches.Find(0, kPrompt, 5 * kTokens), 4 * kTokens) << "it would tell what others evict";
  caches.Changed(0, std::vector<PrefixChange>{{4, false}, {9, false}, {3, false}, {3, true}});
  EXPECT_EQ(caches.Find(0, kPrompt, 5 * kTokens), 3 * kTokens);
  caches.Lost(0, 1'000'000);
  caches.Changed(0, std::vector<PrefixChange>{{1, true}});
  EXPECT_EQ(caches.Find(0, kPrompt, 5 * kTokens), kTokens);
  PrefixCache small(2 * kTokens, /*most_entries=*/3);
  small.Change(std::vector<PrefixChange>{{1, true}});
  for (int i = 0; i < 5; ++i) small.Write(kTokens);
  EXPECT_TRUE(small.Has(1));
}

TEST(PrefixCaches, ALossTakesTheLeastRecentlyUsedShare) {
  PrefixCaches caches = Of();
  for (uint64_t block = 1; block <= 40; ++block) caches.Placed(0, {&block, 1}, kTokens);
  const auto left = [&] {
    int64_t blocks = 0;
    for (uint64_t block = 1; block <= 40; ++block) blocks += caches.Has(0, block) ? 1 : 0;
    return blocks;
  };
  caches.Lost(0, 250'000);
  EXPECT_EQ(left(), 30);
  EXPECT_FALSE(caches.Has(0, 10));
  // A hundredth of 30 blocks is less than one.
  for (int i = 0; i < 3; ++i) caches.Lost(0, 10'000);
  EXPECT_EQ(left(), 30);
  caches.Lost(0, 10'000);
  EXPECT_EQ(left(), 29);
  caches.Lost(0, 1'000'000);
  EXPECT_EQ(left(), 0);
}

TEST(PrefixCaches, AllTogetherHaveABoundWhateverTheirNumberWas) {
  PrefixCaches caches;
  std::vector<PrefixCaches::Member> members;
  std::vector<uint64_t> prompt(static_cast<size_t>(PrefixCaches::kMostEntries / 2));
  for (uint64_t member = 1; member <= 3; ++member) {
    members.push_back({member, true, int64_t{1} << 40});
    caches.Open(members);
    for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = (member << 32) + i;
    caches.Placed(static_cast<WorkerIndex>(member - 1), prompt, std::ssize(prompt) * kTokens);
  }
  int64_t found = 0;
  for (uint64_t member = 1; member <= 3; ++member) {
    for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = (member << 32) + i;
    found += caches.Find(static_cast<WorkerIndex>(member - 1), prompt, int64_t{1} << 40) / kTokens;
  }
  EXPECT_LE(found, PrefixCaches::kMostEntries);
  EXPECT_GE(found, PrefixCaches::kMostEntries - 3);
}

TEST(PrefixCaches, WorkersKeepTheirsAcrossEpochsWhateverTheirRank) {
  PrefixCaches caches = Of();
  caches.Placed(1, kPrompt, 4 * kTokens + 9);
  caches.Observed(1, 100, 50);
  const std::vector<PrefixCaches::Member> members = {
      {8, true, 100 * kTokens}, {9, true, 100 * kTokens}, {0, true, 100 * kTokens}};
  caches.Open(members);
  EXPECT_EQ(caches.Find(0, kPrompt, 5 * kTokens), 4 * kTokens);
  EXPECT_LT(caches.Trust(0), 1);
  EXPECT_EQ(caches.Find(1, kPrompt, 5 * kTokens), 0);
  // A member with another memory size is an engine that has been restarted.
  const std::vector<PrefixCaches::Member> other = {{8, true, 200 * kTokens}};
  caches.Open(other);
  EXPECT_EQ(caches.Find(0, kPrompt, 5 * kTokens), 0);
}

TEST(PrefixCaches, AnEndedRequestsPromptCountsAsJustUsed) {
  PrefixCaches caches = Of({{1, true, 8 * kTokens}});
  caches.Placed(0, kPrompt, 4 * kTokens);
  const std::vector<uint64_t> other = {9, 10, 11};
  caches.Placed(0, other, 3 * kTokens);
  // The request's output evicts blocks of the other prompt, not its own.
  caches.Ended(0, kPrompt, 3 * kTokens);
  EXPECT_EQ(caches.Find(0, kPrompt, 9 * kTokens), 4 * kTokens);
  EXPECT_EQ(caches.Find(0, other, 9 * kTokens), 1 * kTokens);
}

TEST(PrefixCaches, AWorkerThatFindsLessIsTrustedLessAndRegainsTrust) {
  PrefixCaches caches = Of();
  caches.Placed(0, kPrompt, 5 * kTokens);
  EXPECT_EQ(caches.Trust(0), 1);
  caches.Observed(0, 256, 0);
  EXPECT_GT(caches.Trust(0), 0.9) << "one of many";
  for (int i = 0; i < 1000; ++i) caches.Observed(0, 256, 0);
  EXPECT_NEAR(caches.Trust(0), 0, 1e-6);
  EXPECT_EQ(caches.Expected(0, kPrompt, 5 * kTokens), 0);
  EXPECT_EQ(caches.Find(0, kPrompt, 5 * kTokens), 4 * kTokens) << "what it could confirm";
  EXPECT_EQ(caches.Trust(1), 1) << "another worker's";
  for (int i = 0; i < 1000; ++i) caches.Observed(0, 256, 300);
  EXPECT_NEAR(caches.Trust(0), 1, 1e-6);
  EXPECT_LE(caches.Trust(0), 1) << "more found than expected";
  for (int i = 0; i < 1000; ++i) caches.Observed(0, 256, 64);
  EXPECT_NEAR(caches.Trust(0), 0.25, 1e-6);
  caches.Observed(0, 0, 64);
  EXPECT_NEAR(caches.Trust(0), 0.25, 1e-6) << "nothing was expected";
}

TEST(PrefixCaches, TrustIsTheShareOfTokensNotOfPrompts) {
  PrefixCaches caches = Of();
  for (int i = 0; i < 1000; ++i) {
    caches.Observed(0, 100 * kTokens, 0);
    caches.Observed(0, kTokens, kTokens);
    caches.Observed(1, 100 * kTokens, 100 * kTokens);
    caches.Observed(1, kTokens, 0);
  }
  EXPECT_LT(caches.Trust(0), 0.02) << "every system prompt, and no document";
  EXPECT_GT(caches.Trust(1), 0.98) << "every document, and no system prompt";
}

TEST(PrefixCaches, TheFirstPromptsOfAWorkerDecideLittle) {
  PrefixCaches caches = Of();
  caches.Observed(0, kTokens, kTokens);
  caches.Observed(0, 1000 * kTokens, 0);
  EXPECT_GT(caches.Trust(0), 0.9) << "however long";
}

// --- prefix cache ---

constexpr int64_t kBlock = kPrefixBlockTokens;
using Blocks = std::vector<uint64_t>;

// A reference implementation by the definition: a list that is searched from the front.
class PlainCache {
 public:
  PlainCache(int64_t capacity, int64_t most) : capacity_(capacity), most_(most) {}
  int64_t Find(const Blocks& blocks) const {
    int64_t found = 0;
    for (const uint64_t block : blocks) {
      if (std::none_of(list_.begin(), list_.end(), [&](const Entry& e) { return e.block == block; })) break;
      found += kBlock;
    }
    return found;
  }
  void Touch(const Blocks& blocks) {
    for (auto block = blocks.rbegin(); block != blocks.rend(); ++block) {
      list_.remove_if([&](const Entry& e) { return e.block == *block; });
      list_.push_front({*block, kBlock});
    }
    Shrink();
  }
  void Write(int64_t tokens) {
    loose_ += tokens;
    if (loose_ < kBlock) return;
    list_.push_front({0, loose_ - loose_ % kBlock});
    loose_ %= kBlock;
    Shrink();
  }
  int64_t entries() const { return static_cast<int64_t>(list_.size()); }

 private:
  struct Entry {
    uint64_t block;
    int64_t tokens;
  };
  void Shrink() {
    const auto tokens = [&] {
      int64_t sum = 0;
      for (const Entry& e : list_) sum += e.tokens;
      return sum;
    };
    while (!list_.empty() && (tokens() > capacity_ || entries() > most_)) list_.pop_back();
  }

  int64_t capacity_, most_, loose_ = 0;
  std::list<Entry> list_;
};

// A random path in a tree: a block's name identifies all blocks before it.
Blocks AnyPrompt(Rng& rng) {
  Blocks blocks;
  uint64_t name = 1;
  for (uint64_t i = rng.Below(12); i > 0; --i) blocks.push_back(name = 3 * name + rng.Below(2));
  return blocks;
}

TEST(PrefixCache, FindsWhatAPlainListFinds) {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    Rng rng(seed);
    const auto capacity = static_cast<int64_t>(kBlock * rng.Below(seed % 4 == 0 ? 6 : 61));
    const auto most = static_cast<int64_t>(rng.Below(seed % 4 == 1 ? 6 : 61));
    PrefixCache cache(capacity, most);
    PlainCache plain(capacity, most);
    PrefixCache once(capacity, most);
    once.Touch({1, 2, 3, 4, 5, 6, 7, 8});
    ASSERT_LE(once.allocated_entries(), most) << "no memory is allocated for more";
    for (int turn = 0; turn < 400; ++turn) {
      if (rng.Below(4) == 0) {
        const auto tokens = static_cast<int64_t>(1 + rng.Below(rng.Below(2) == 0 ? 3 : 3 * kBlock));
        cache.Write(tokens);
        plain.Write(tokens);
      } else {
        const Blocks blocks = AnyPrompt(rng);
        cache.Touch(blocks);
        plain.Touch(blocks);
      }
      const Blocks blocks = AnyPrompt(rng);
      ASSERT_EQ(cache.Find(blocks), plain.Find(blocks)) << "seed " << seed << ", turn " << turn;
      ASSERT_LE(cache.tokens(), capacity);
      ASSERT_EQ(cache.entries(), plain.entries());
      ASSERT_LE(cache.entries(), capacity / kBlock) << "however short the writes";
    }
  }
}

// With enough memory, a block is present if it has been computed or a placed request will compute it.
TEST(PrefixCache, HasWhatIsComputedOrAwaited) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Rng rng(seed);
    PrefixCache cache(1'000'000 * kBlock, 1'000'000);
    std::vector<Blocks> placed;
    std::set<uint64_t> computed;
    const auto compute = [&](const Blocks& blocks, size_t count) {
      computed.insert(blocks.begin(), blocks.begin() + static_cast<std::ptrdiff_t>(count));
    };
    for (int turn = 0; turn < 400; ++turn) {
      if (placed.empty() || rng.Below(2) == 0) {
        cache.Await(placed.emplace_back(AnyPrompt(rng)));
      } else {
        std::swap(placed[rng.Below(placed.size())], placed.back());
        const Blocks blocks = placed.back();
        placed.pop_back();
        if (rng.Below(2) == 0) {
          cache.Complete(blocks);
          compute(blocks, blocks.size());
        } else {
          const size_t count = rng.Below(3) > 0 ? 0 : rng.Below(blocks.size() + 1);
          cache.Withdraw(blocks, count);
          compute(blocks, count);
        }
      }
      std::set<uint64_t> here = computed;
      for (const Blocks& blocks : placed) here.insert(blocks.begin(), blocks.end());
      ASSERT_EQ(cache.entries(), std::ssize(here)) << "seed " << seed << ", turn " << turn;
      const Blocks blocks = AnyPrompt(rng);
      const auto end =
          std::find_if(blocks.begin(), blocks.end(), [&](uint64_t b) { return !here.contains(b); });
      ASSERT_EQ(cache.Find(blocks), (end - blocks.begin()) * kBlock) << "seed " << seed << ", turn " << turn;
    }
  }
}

}  // namespace
}  // namespace bfio::core
