#include "router/core/prefix/prefix_caches.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

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

}  // namespace
}  // namespace bfio::core
