// Composing the free servers of a pool, beside the chains that serve.
#include "chains/core/pool_plan.h"

#include "absl/strings/str_cat.h"
#include "common/base/rng.h"
#include "gmock/gmock.h"

namespace bfio::core {
namespace {

std::vector<std::string> Text(const ServerChain& chain, absl::Span<const PoolServer> servers) {
  std::vector<std::string> text;
  for (const ChainHop& hop : chain.hops)
    text.push_back(absl::StrCat(servers[hop.server].name, hop.range.first, "-", hop.range.end()));
  return text;
}

TEST(PlanChainsTest, ServersHoldWhatFitsTheirMemory) {
  // Sizes in bytes: a block takes 100, and 10 more per request. With memory for 4 requests that is 140 a
  // block: the servers hold 4, 3, 3 and 2 blocks.
  const BlockSizes sizes = {12, 100, 10};
  const std::vector<PoolServer> servers = {{"d", 280}, {"a", 560}, {"b", 420}, {"c", 420}};
  for (const int64_t max_slots : {4, 40}) {
    const auto plan = PlanChains(servers, sizes, max_slots);
    ASSERT_TRUE(plan.ok()) << plan.status();
    ASSERT_EQ(plan->chains.size(), 1u);
    EXPECT_EQ(plan->chains[0].capacity, 4);
    EXPECT_THAT(Text(plan->chains[0], servers), ::testing::ElementsAre("a0-4", "b4-7", "c7-10", "d10-12"));
  }
}

TEST(PlanChainsTest, TooLittleMemoryIsReportedWithTheMissingBlocks) {
  const std::vector<PoolServer> servers = {{"a", 330}, {"b", 10}};
  const auto plan = PlanChains(servers, {12, 100, 10}, 8);
  EXPECT_TRUE(absl::IsResourceExhausted(plan.status()));
  EXPECT_EQ(plan.status().message(), "2 servers have memory for 3 of 12 blocks with cache for one request");
}

TEST(PlanChainsTest, AServerInAChainKeepsItsBlocksAndLendsItsFreeCache) {
  const BlockSizes sizes = {6, 100, 10};
  // Server a hosts the last 3 blocks and has cache for 30 slots, one slot per request and block, of which 18
  // are free.
  std::vector<PoolServer> servers = {{"a", 600, BlockRange{3, 3}, 12}, {"b", 600}};
  const auto plan = PlanChains(servers, sizes, 9);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->placement[0], (BlockRange{3, 3}));
  ASSERT_EQ(plan->chains.size(), 1u);
  // With memory for 9 requests a block takes 190 bytes on server b: 3 blocks, and cache for 10 requests.
  EXPECT_THAT(Text(plan->chains[0], servers), ::testing::ElementsAre("b0-3", "a3-6"));
  EXPECT_EQ(plan->chains[0].capacity, 6) << "18 slots over 3 blocks";
  servers[0].slots_used = 30;
  servers[1].memory = 500;
  EXPECT_TRUE(absl::IsResourceExhausted(PlanChains(servers, sizes, 4).status())) << "nothing is left there";
}

TEST(PlanChainsTest, CacheAboveTheLimitIsForChainsThatOverlap) {
  // Servers a and b have cache for 8 requests in 3 blocks, c for 4. With at most 4 requests for a chain, a
  // and b have cache for 4 more, which only a chain with c may use.
  const BlockSizes sizes = {6, 100, 10};
  std::vector<PoolServer> servers = {{"a", 555}, {"b", 555}, {"c", 420}};
  const auto plan = PlanChains(servers, sizes, 4);
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_EQ(plan->chains.size(), 2u);
  EXPECT_THAT(Text(plan->chains[0], servers), ::testing::ElementsAre("a0-3", "b3-6"));
  EXPECT_THAT(Text(plan->chains[1], servers), ::testing::ElementsAre("c0-3", "b3-6"));
  EXPECT_EQ(plan->chains[0].capacity, 4);
  EXPECT_EQ(plan->chains[1].capacity, 4);
  // The same when c joins later.
  servers[0].hosts = BlockRange{0, 3};
  servers[1].hosts = BlockRange{3, 3};
  servers[0].slots_used = servers[1].slots_used = 12;
  const auto later = PlanChains(servers, sizes, 4, false, {{{0, 4, {0, 1}}}});
  ASSERT_TRUE(later.ok()) << later.status();
  ASSERT_EQ(later->chains.size(), 1u);
  EXPECT_THAT(Text(later->chains[0], servers), ::testing::ElementsAre("c0-3", "b3-6"));
}

TEST(PlanChainsTest, ChainsCoverTheModelWithinEveryServersMemory) {
  Rng rng(9);
  int made = 0;
  for (int round = 0; round < 300; ++round) {
    const BlockSizes sizes = {static_cast<int32_t>(1 + rng.Below(40)),
                              static_cast<int64_t>(1 + rng.Below(100)),
                              static_cast<int64_t>(1 + rng.Below(30))};
    std::vector<PoolServer> servers(1 + rng.Below(10));
    for (size_t i = 0; i < servers.size(); ++i)
      servers[i] = {absl::StrCat(i), static_cast<int64_t>(1 + rng.Below(3000))};
    const auto max_slots = static_cast<int64_t>(1 + rng.Below(20));
    const auto plan = PlanChains(servers, sizes, max_slots);
    if (!plan.ok()) continue;
    made += static_cast<int>(plan->chains.size());
    std::vector<int64_t> taken(servers.size());
    std::set<std::vector<int32_t>> different;
    for (const ServerChain& chain : plan->chains) {
      EXPECT_GE(chain.capacity, 1);
      EXPECT_LE(chain.capacity, max_slots);
      int32_t next = 0;
      for (const ChainHop& hop : chain.hops) {
        EXPECT_EQ(hop.range.first, next);
        EXPECT_GE(hop.range.first, plan->placement[hop.server].first);
        EXPECT_LE(hop.range.end(), plan->placement[hop.server].end());
        next = hop.range.end();
        taken[hop.server] += chain.capacity * hop.range.count * sizes.request;
      }
      EXPECT_EQ(next, sizes.blocks);
      EXPECT_TRUE(different.insert(ServersOf(chain)).second) << "two chains of the same servers";
    }
    for (size_t j = 0; j < servers.size(); ++j) {
      EXPECT_LE(plan->placement[j].count * sizes.block + taken[j], servers[j].memory);
    }
  }
  EXPECT_GT(made, 100);
}

TEST(PlanChainsTest, FastAndNearServersAreUsedFirst) {
  const BlockSizes sizes = {6, 100, 10};
  std::vector<PoolServer> servers = {{"a", 420}, {"b", 420}, {"c", 420}, {"d", 420}};
  servers[0].times = servers[2].times = {1, 1};
  servers[1].times = {9, 1};
  servers[3].times = {1, 9};
  const auto plan = PlanChains(servers, sizes, 4);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_THAT(Text(plan->chains[0], servers), ::testing::ElementsAre("a0-3", "c3-6"));
  EXPECT_DOUBLE_EQ(plan->chains[0].time, 8);
}

// Alone each server holds the whole model and takes 9 s for a request, one at a time; together they take 12 s
// for up to `slots`.
size_t ServersOfAChain(int64_t slots, absl::Span<const ExistingChain> standing = {}) {
  std::vector<PoolServer> servers = {{"a", 660}, {"b", 660}};
  for (PoolServer& server : servers) server.times = {1, 3};
  const auto plan = PlanChains(servers, {6, 100, 10}, slots, /*measured=*/true, standing);
  return plan.ok() ? plan->chains[0].hops.size() : 0;
}

TEST(PlanChainsTest, MeasuredChainsAreComposedForMostOfTheRateThatTheyCanReach) {
  EXPECT_EQ(ServersOfAChain(2), 1u) << "two of 9 s carry more than two of 12 s";
  EXPECT_EQ(ServersOfAChain(8), 2u);
  EXPECT_EQ(ServersOfAChain(8, {{{0.1, 20, {-1}}}}), 2u);
  EXPECT_EQ(ServersOfAChain(8, {{{0.1, 1000, {-1}}}}), 1u) << "the others carry nearly all";
}

}  // namespace
}  // namespace bfio::core
