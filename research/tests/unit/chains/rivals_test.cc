// Placement and routing of the compared systems on pools small enough to check by hand, and the wide-area
// pools.
#include <gmock/gmock.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "research/chains/rival_placement.h"
#include "research/chains/routed_jobs.h"
#include "research/chains/wide_area.h"

namespace bfio::sim {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(PetalsPlacement, JoinsWhereLeastIsAnnounced) {
  const core::ChainService service = {4, 1, 0.1};
  const std::vector<core::ChainServer> servers(3, {"", 5, 1, 1});
  const PetalsOptions options = {1, 2, {{30, 100}, {30, 100}, {30, 5}}};
  // Each server hosts two blocks; the announced throughputs are 20, 20 and 5.
  EXPECT_THAT(PetalsPlacement(servers, service, options, {0, 1, 2}),
              ElementsAre(BlockRange{0, 2}, BlockRange{2, 2}, BlockRange{0, 2}));
  EXPECT_THAT(PetalsPlacement(servers, service, options, {2, 0, 1}),
              ElementsAre(BlockRange{2, 2}, BlockRange{0, 2}, BlockRange{0, 2}));
}

TEST(PetalsPlacement, HostsNoMoreThanItsBound) {
  const core::ChainService service = {4, 1, 0.1};
  const std::vector<core::ChainServer> servers(2, {"", 9, 1, 1});
  EXPECT_THAT(PetalsPlacement(servers, service, {1, 2, {{30, 100, 3}, {30, 100}}}, {0, 1}),
              ElementsAre(BlockRange{0, 3}, BlockRange{0, 4}));
}

TEST(PlaceByBprr, CoversAllBlocksBeforeAnyTwice) {
  const core::ChainService service = {6, 1, 0.1};
  const std::vector<core::ChainServer> servers = {
      {"", 3.5, 1, 4}, {"", 3.5, 1, 1}, {"", 3.5, 1, 2}, {"", 3.5, 1, 3}};
  const BprrPlacement placement = PlaceByBprr(servers, service, 0.01);
  EXPECT_EQ(placement.sessions, 1);
  // Each server hosts three blocks with cache for one session; two servers cover the model, the other two
  // cover it again.
  std::vector<int> hosts(6, 0);
  for (const BlockRange& range : placement.ranges) {
    EXPECT_EQ(range.count, 3);
    for (int b = range.first; b < range.end(); ++b) ++hosts[b];
  }
  EXPECT_THAT(hosts, ElementsAre(2, 2, 2, 2, 2, 2));
}

TEST(ServeByRoutes, WaitsForCacheOnEveryServer) {
  // One server with two blocks and cache for one job.
  const core::ChainService service = {2, 1, 0.5};
  const std::vector<core::ChainServer> servers = {{"", 3, 1, 0.5}};
  const RoutedSystem system = {servers, service, {{0, 2}}};
  const RoutingRule rule = {.kind = RoutingRule::Kind::kWaitAware, .start_delay = 0};
  const auto served = ServeByRoutes(system, rule, std::vector<ChainJob>{{0, 1}, {0.5, 1}, {1, 0.5}, {9, 1}});
  ASSERT_TRUE(served.ok());
  EXPECT_NEAR((*served)[0].response(), 2, 1e-12);
  EXPECT_NEAR((*served)[1].wait, 1.5, 1e-12);
  EXPECT_NEAR((*served)[2].wait, 3, 1e-12);
  EXPECT_NEAR((*served)[3].wait, 0, 1e-12);
}

TEST(ServeByRoutes, NoJobWaitsBehindAnotherForAServerThatIsFull) {
  // Two servers host block 0, with cache for one job each; one server hosts block 1, with cache for three.
  const core::ChainService service = {2, 1, 0.5};
  const std::vector<core::ChainServer> servers = {{"", 1.5, 0, 1}, {"", 2.5, 0, 1}, {"", 1.5, 0, 4}};
  const RoutedSystem system = {servers, service, {{0, 1}, {1, 1}, {0, 1}}};
  const RoutingRule rule = {.kind = RoutingRule::Kind::kWaitAware, .start_delay = 0};
  const auto served = *ServeByRoutes(system, rule, std::vector<ChainJob>{{0, 1}, {0.1, 1}, {0.2, 1}});
  EXPECT_NEAR(served[1].wait, 1.9, 1e-12) << "waiting for the quick one and then 1 is quicker than 4";
  EXPECT_EQ(served[2].chain, 2);
  EXPECT_NEAR(served[2].wait, 0, 1e-12) << "the second waits for the first server, not for the middle one";
}

TEST(ServeByRoutes, WaitAwareTakesTheSlowServerWhenItIsQuicker) {
  const core::ChainService service = {1, 1, 1};
  const std::vector<core::ChainServer> servers = {{"", 2, 0, 1}, {"", 2, 0, 1.5}};
  const RoutedSystem system = {servers, service, {{0, 1}, {0, 1}}};
  const RoutingRule aware = {.kind = RoutingRule::Kind::kWaitAware, .start_delay = 0};
  const std::vector<ChainJob> jobs = {{0, 1}, {0.1, 1}, {0.2, 1}};
  const auto served = *ServeByRoutes(system, aware, jobs);
  EXPECT_THAT((std::vector<int>{served[0].chain, served[1].chain, served[2].chain}), ElementsAre(0, 1, 0));
  // PETALS avoids full servers while the penalty exceeds the difference in time; with a smaller penalty only
  // time decides.
  RoutingRule petals = {.kind = RoutingRule::Kind::kPetals, .hop_per_token = {0, 0}, .start_delay = 0};
  EXPECT_EQ((*ServeByRoutes(system, petals, jobs))[1].chain, 1);
  petals.penalty = 0.1;
  EXPECT_EQ((*ServeByRoutes(system, petals, jobs))[1].chain, 0);
}

TEST(ServeByRoutes, RefusesAPlacementWithHoles) {
  const core::ChainService service = {2, 1, 0.5};
  const std::vector<core::ChainServer> servers = {{"", 3, 1, 0.5}};
  const auto served = ServeByRoutes({servers, service, {{0, 1}}}, {.kind = RoutingRule::Kind::kWaitAware},
                                    std::vector<ChainJob>{{0, 1}});
  EXPECT_EQ(served.status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(Rtts, AreAMetricLikeMatrixOfPlausibleTimes) {
  const RttMatrix rtts = EuropeanRtts(60, 5);
  std::vector<double> all;
  for (size_t i = 0; i < rtts.size(); ++i) {
    EXPECT_EQ(rtts[i][i], 0);
    for (size_t j = 0; j < i; ++j) {
      EXPECT_EQ(rtts[i][j], rtts[j][i]);
      all.push_back(rtts[i][j]);
    }
  }
  std::nth_element(all.begin(), all.begin() + all.size() / 2, all.end());
  EXPECT_GT(all[all.size() / 2], 15);
  EXPECT_LT(all[all.size() / 2], 45);
}

TEST(Rtts, ParsesOrReportsTheLine) {
  EXPECT_THAT(*ParseRtts("0,12.5\n12,0\n"), ElementsAre(ElementsAre(0, 12.5), ElementsAre(12, 0)));
  EXPECT_THAT(std::string(ParseRtts("0,1\n1,x\n").status().message()), HasSubstr("line 2, column 2"));
  EXPECT_THAT(std::string(ParseRtts("0,1\n1\n").status().message()), HasSubstr("line 2 has 1 columns"));
  EXPECT_THAT(std::string(ParseRtts("0,-1\n1,0\n").status().message()), HasSubstr("line 1, column 2"));
  EXPECT_FALSE(ParseRtts("").ok());
}

TEST(DrawPool, HasTheFractionOfFastServersAtDifferentPlaces) {
  const RttMatrix rtts = EuropeanRtts(60, 5);
  const WideAreaPool pool = DrawPool(rtts, 20, 0.2, 3);
  EXPECT_EQ(std::count_if(pool.servers.begin(), pool.servers.end(),
                          [](const core::ChainServer& server) { return server.memory == 40; }),
            4);
  EXPECT_EQ(std::set<double>(pool.round_trip.begin(), pool.round_trip.end()).size(), 20u);
  EXPECT_NEAR(pool.servers[7].communication, 20 * (pool.round_trip[7] + 0.018), 1e-12);
  EXPECT_TRUE(core::CheckPool(pool.servers, BloomService()).ok());
}

}  // namespace
}  // namespace bfio::sim
