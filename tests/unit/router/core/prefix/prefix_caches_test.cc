#include "router/core/prefix/prefix_caches.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "common/base/rng.h"

namespace bfio::core {
namespace {

constexpr int64_t kTokens = kPrefixBlockTokens;
const std::vector<uint64_t> kPrompt = {1, 2, 3, 4};

PrefixCaches Two() {
  PrefixCaches caches;
  const std::vector<PrefixCaches::Member> members = {{7, true, 100 * kTokens}, {8, true, 100 * kTokens}};
  caches.Open(members);
  return caches;
}

TEST(PrefixCaches, EachWorkerHasWhatWasPlacedThere) {
  PrefixCaches caches = Two();
  caches.Placed(1, kPrompt, 5 * kTokens);
  EXPECT_EQ(caches.Find(0, kPrompt, 5 * kTokens), 0);
  EXPECT_EQ(caches.Find(1, kPrompt, 5 * kTokens), 4 * kTokens);
  EXPECT_EQ(caches.Expected(1, kPrompt, 5 * kTokens), 4 * kTokens);
}

TEST(PrefixCaches, TheMostThatAnyWorkerHasIsFoundWithoutAskingEach) {
  Rng rng(1);
  PrefixCaches caches;
  std::vector<PrefixCaches::Member> members(6);
  for (size_t g = 0; g < members.size(); ++g)
    members[g] = {g + 1, g != 3, static_cast<int64_t>(5 + 5 * g) * kTokens};
  caches.Open(members);
  for (int turn = 0; turn < 3000; ++turn) {
    std::vector<uint64_t> prompt;
    for (uint64_t i = 0, name = 1; i < 1 + rng.Below(9); ++i)
      prompt.push_back(name = 4 * name + rng.Below(2));
    const auto tokens = static_cast<int64_t>(prompt.size()) * kTokens;
    int64_t most = 0;
    for (WorkerIndex g = 0; g < std::ssize(members); ++g)
      most = std::max(most, caches.Find(g, prompt, tokens));
    ASSERT_EQ(caches.FindAnywhere(prompt, tokens), most) << turn;
    const auto worker = static_cast<WorkerIndex>(rng.Below(members.size()));
    if (rng.Below(2) == 0) caches.Placed(worker, prompt, tokens + 3);
    if (rng.Below(4) == 0) caches.Ended(worker, prompt, static_cast<int64_t>(rng.Below(200)));
    if (turn % 100 != 99) continue;
    // An epoch of others: some leave, and the ranks of those that stay change.
    std::rotate(members.begin(), members.begin() + 1, members.end());
    members.back().member += 10;
    caches.Open(members);
  }
}

TEST(PrefixCaches, APromptThatIsWhollyCachedComputesItsLastToken) {
  PrefixCaches caches = Two();
  caches.Placed(1, kPrompt, 4 * kTokens);
  EXPECT_EQ(caches.Find(1, kPrompt, 4 * kTokens), 4 * kTokens - 1);
}

TEST(PrefixCaches, WorkersKeepTheirsAcrossEpochsWhateverTheirRank) {
  PrefixCaches caches = Two();
  caches.Placed(1, kPrompt, 4 * kTokens + 9);
  caches.Observed(1, 100, 50);
  const std::vector<PrefixCaches::Member> members = {
      {8, true, 100 * kTokens}, {9, true, 100 * kTokens}, {0, true, 100 * kTokens}};
  caches.Open(members);
  EXPECT_EQ(caches.Find(0, kPrompt, 5 * kTokens), 4 * kTokens);
  EXPECT_LT(caches.Trust(0), 1);
  EXPECT_EQ(caches.Find(1, kPrompt, 5 * kTokens), 0);
  // Its memory is another: the engine has been started again.
  const std::vector<PrefixCaches::Member> other = {{8, true, 200 * kTokens}};
  caches.Open(other);
  EXPECT_EQ(caches.Find(0, kPrompt, 5 * kTokens), 0);
}

TEST(PrefixCaches, AWorkerWithoutACacheHasNothing) {
  PrefixCaches caches;
  const std::vector<PrefixCaches::Member> members = {{1, false, 100 * kTokens}};
  caches.Open(members);
  EXPECT_FALSE(caches.any());
  caches.Placed(0, kPrompt, 5 * kTokens);
  caches.Ended(0, kPrompt, 10);
  EXPECT_EQ(caches.Find(0, kPrompt, 5 * kTokens), 0);
}

TEST(PrefixCaches, AnEndedRequestsPromptCountsAsJustUsed) {
  PrefixCaches caches;
  const std::vector<PrefixCaches::Member> members = {{1, true, 8 * kTokens}};
  caches.Open(members);
  caches.Placed(0, kPrompt, 4 * kTokens);
  const std::vector<uint64_t> other = {9, 10, 11};
  caches.Placed(0, other, 3 * kTokens);
  // Its outputs push out the other prompt's blocks, not its own.
  caches.Ended(0, kPrompt, 3 * kTokens);
  EXPECT_EQ(caches.Find(0, kPrompt, 9 * kTokens), 4 * kTokens);
  EXPECT_EQ(caches.Find(0, other, 9 * kTokens), 1 * kTokens);
}

TEST(PrefixCaches, AWorkerThatFindsLessIsTrustedLessAndRegainsTrust) {
  PrefixCaches caches = Two();
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

}  // namespace
}  // namespace bfio::core
