// The JSON objects that bfio_chain_sim prints.
#include "research/chains/runs.h"

#include <gmock/gmock.h>

#include <limits>
#include <string>
#include <vector>

#include "research/chains/response_bound.h"
#include "research/chains/slice_runs.h"

namespace bfio::sim {
namespace {

using ::testing::HasSubstr;

PoolRun Small() {
  return {.rtts = EuropeanRtts(60, 1), .jobs = 4000, .seed = 3};
}

TEST(ChainRuns, MeanResponseIsWithinTheBounds) {
  PoolRun run = Small();
  run.load = 0.7;
  const auto served = RunServe(run, "composed", "jffc");
  ASSERT_TRUE(served.ok()) << served.status();
  const double response = served->at("response_s");
  EXPECT_GE(response, 0.9 * served->at("lower_s").get<double>());
  EXPECT_LE(response, 1.1 * served->at("upper_s").get<double>());
  EXPECT_DOUBLE_EQ(response, served->at("wait_s").get<double>() + served->at("service_s").get<double>());
  EXPECT_EQ(served->at("c"), 7);
}

TEST(LeastResponse, IsExactForLoneJobsAndGrowsWithTheDemand) {
  // Two servers with 12 GB hold 5 blocks of 2 GB each and 0.4 GB of cache for a job's block: b = 5 of 10
  // blocks.
  const core::ChainService service = {10, 2, 0.4};
  std::vector<core::ChainServer> servers = {{"a", 12, 3, 0.1}, {"b", 12, 3, 0.2}};
  EXPECT_NEAR(LeastResponse(servers, service, 0), 3 + 0.5 + 3 + 1, 1e-9);
  EXPECT_EQ(LeastResponse(servers, service, 10), std::numeric_limits<double>::infinity());
  servers.push_back({"c", 12, 3, 0.3});
  EXPECT_NEAR(LeastResponse(servers, service, 0), 7.5, 1e-9) << "the slowest is not needed";
  // At 0.2 jobs/s 1.5 jobs hold cache at a time: 12 GB are enough for 12 / 2.6 blocks of them.
  const double blocks = 12 / 2.6;
  EXPECT_NEAR(LeastResponse(servers, service, 0.2), blocks * (0.7 + 0.8) + (10 - 2 * blocks) * 0.9, 1e-9);
}

TEST(LeastResponse, NoSystemIsBelowIt) {
  int compared = 0;
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    PoolRun run = {.rtts = EuropeanRtts(60, seed),
                   .servers = static_cast<int64_t>(10 + seed),
                   .fast = 0.1 * static_cast<double>(1 + seed % 4),
                   .reserve = 0,
                   .use_all = true,
                   .jobs = 4000,
                   .seed = seed};
    for (const char* system : {"composed", "petals", "bprr"}) {
      const auto served = RunServe(run, system, "jffc");
      ASSERT_TRUE(served.ok()) << served.status();
      if (served->at("response_s").is_null()) continue;
      // The jobs of a run have sizes of mean 1 to within some 3 %.
      EXPECT_GE(served->at("response_s").get<double>(), 0.97 * served->at("least_s").get<double>()) << system;
      ++compared;
    }
  }
  EXPECT_GT(compared, 30);
}

TEST(ChainRuns, TheSameSeedGivesTheSameObject) {
  for (const char* system : {"composed", "petals", "bprr"})
    EXPECT_EQ(*RunServe(Small(), system, "jiq"), *RunServe(Small(), system, "jiq")) << system;
  PoolRun other = Small();
  other.seed = 4;
  EXPECT_NE(RunTuning(Small()), RunTuning(other));
}

TEST(ChainRuns, ADemandBeyondCapacityGivesNull) {
  PoolRun run = Small();
  run.demand = 1e6;
  EXPECT_TRUE(RunServe(run, "composed", "jffc")->at("response_s").is_null());
  run.reserve = 0;
  EXPECT_TRUE(RunServe(run, "composed", "jffc")->at("response_s").is_null());
  EXPECT_TRUE(RunPlacement({.rtts = run.rtts, .demand = 1e6}, 3).at("gbp_cr").is_null());
}

TEST(ChainRuns, PrintedChainsUseNoMoreCacheThanServersHave) {
  const auto object = RunChains(Small());
  std::vector<int64_t> left = object.at("slots");
  double slower = 0;
  for (const auto& chain : object.at("chains")) {
    EXPECT_GE(chain.at("time_s"), slower);
    slower = chain.at("time_s");
    for (const auto& hop : chain.at("hops"))
      left[hop[0].get<size_t>()] -= chain.at("capacity").get<int64_t>() * hop[1].get<int64_t>();
  }
  for (const int64_t slots : left) EXPECT_GE(slots, 0);
  EXPECT_EQ(object.at("reserved"), 7);
  EXPECT_FALSE(object.at("disjoint_s").empty());
}

TEST(ChainRuns, UnknownNamesAreRefusedWithTheKnownOnes) {
  EXPECT_THAT(std::string(RunServe(Small(), "best", "jffc").status().message()), HasSubstr("petals_slices"));
  EXPECT_THAT(std::string(RunServe(Small(), "composed", "best").status().message()), HasSubstr("sa_jsq"));
  const Trace trace = *SampleProfile("code", 100, 1);
  EXPECT_THAT(std::string(RunOnSlices({}, "best", trace).status().message()), HasSubstr("bursts"));
}

TEST(ChainRuns, TripledTimesTripleTheServiceTime) {
  const Trace trace = *SampleProfile("code", 1000, 1);
  const double once = RunOnSlices({.jobs = 200}, "whole", trace)->at("service_s");
  const double thrice =
      RunOnSlices({.compute = 3, .communication = 3, .jobs = 200}, "whole", trace)->at("service_s");
  // More jobs wait, so slower servers take a larger share of them.
  EXPECT_GE(thrice, 2.99 * once);
  EXPECT_LE(thrice, 4 * once);
}

}  // namespace
}  // namespace bfio::sim
