// What each rule does with an arrival, and that queues are kept as it says.
#include "router/core/chain/dispatcher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "tools/sim/chains/chain_queue.h"

namespace bfio::core {
namespace {

std::unique_ptr<ChainDispatcher> Make(const char* name) {
  return *MakeChainDispatcher(name, 1);
}

TEST(ChainDispatcher, Rules) {
  // Fastest first; the first is full.
  const std::vector<ChainView> chains = {{1, 2, 2}, {0.5, 4, 2}, {0.25, 4, 1}, {0.2, 4, 1}};
  EXPECT_EQ(Make("jffc")->OnArrival(chains), 1);
  EXPECT_EQ(Make("sa_jsq")->OnArrival(chains), 2);
  // 1 + 1 / 2 on the full chain against 2 on the next.
  EXPECT_EQ(Make("sed")->OnArrival(chains), 0);
  std::set<int32_t> jsq, jiq;
  const auto shortest = Make("jsq"), idle = Make("jiq");
  for (int i = 0; i < 100; ++i) {
    jsq.insert(shortest->OnArrival(chains));
    jiq.insert(idle->OnArrival(chains));
  }
  EXPECT_THAT(jsq, ::testing::ElementsAre(2, 3));
  EXPECT_THAT(jiq, ::testing::ElementsAre(1, 2, 3));
  EXPECT_EQ(idle->OnArrival(std::vector<ChainView>{{1, 2, 1}, {0.5, 1, 0}}), 1);
}

TEST(ChainDispatcher, FullChains) {
  const std::vector<ChainView> full = {{1, 1, 1}, {0.5, 1, 1}};
  for (const char* name : {"jffc", "sa_jsq", "jiq"})
    EXPECT_EQ(Make(name)->OnArrival(full), kCentralQueue) << name;
  for (const char* name : {"sed", "jsq"}) EXPECT_GE(Make(name)->OnArrival(full), 0) << name;
}

TEST(ChainDispatcher, UnknownNamesTheKnown) {
  EXPECT_EQ(MakeChainDispatcher("best", 1).status().message(),
            "rule 'best' is unknown, choose one of jffc, sa_jsq, sed, jsq, jiq");
}

TEST(ServeOnChains, CentralQueueGoesToWhoeverIsFree) {
  // Jobs of size 1 on chains that take 1 and 3: the third waits for the fast one, the fourth too.
  const std::vector<ChainRate> chains = {{1, 1}, {1.0 / 3, 1}};
  const std::vector<sim::ChainJob> jobs = {{0, 1}, {0.1, 1}, {0.2, 1}, {0.3, 1}, {10, 1}};
  const auto served = sim::ServeOnChains(chains, *Make("jffc"), jobs);
  ASSERT_EQ(served.size(), 5u);
  EXPECT_EQ(served[1].chain, 1);
  EXPECT_NEAR(served[2].wait, 0.8, 1e-12);
  EXPECT_NEAR(served[3].wait, 1.7, 1e-12);
  EXPECT_EQ(served[3].chain, 0);
  EXPECT_EQ(served[4].wait, 0);
}

TEST(ServeOnChains, OwnQueuesKeepTheirJobs) {
  // By expected delay all four stay with the fast chain: 1, 2 and 3 against 3.5.
  const std::vector<ChainRate> chains = {{1, 1}, {1 / 3.5, 1}};
  const std::vector<sim::ChainJob> jobs = {{0, 1}, {0.1, 1}, {0.2, 1}};
  const auto served = sim::ServeOnChains(chains, *Make("sed"), jobs);
  for (const sim::ServedJob& job : served) EXPECT_EQ(job.chain, 0);
  EXPECT_NEAR(served[2].wait, 1.8, 1e-12);
}

}  // namespace
}  // namespace bfio::core
