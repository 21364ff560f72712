// Plans, their changes, sweeps and refusals on the paper's pool.
#include "tools/plan/planner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tools/plan/output.h"

namespace bfio::plan {
namespace {

using ::testing::HasSubstr;

Problem Bloom(double demand) {
  Problem problem;
  problem.service = {.blocks = 70, .block_size = 1.32, .cache_size = 0.11};
  for (int j = 0; j < 20; ++j) {
    problem.servers.push_back(
        {absl::StrCat(j < 4 ? "fast-" : "slow-", j), j < 4 ? 40.0 : 20.0, 0.76, j < 4 ? 0.109 : 0.175});
  }
  problem.demand.rate = demand;
  return problem;
}

TEST(MakePlan, TheGivenReserveIsThePapersPlan) {
  Problem problem = Bloom(0.2);
  problem.reserve = 7;
  const Plan plan = *MakePlan(problem);
  EXPECT_EQ(plan.c(), 7);
  EXPECT_TRUE(plan.meets_target);
  EXPECT_NEAR(plan.response.lower, 10.6849, 5e-5);
  EXPECT_NEAR(*plan.response.exact, 10.6849, 5e-5);
}

TEST(MakePlan, TunesByTheGoal) {
  Problem problem = Bloom(0.2);
  const Plan lower = *MakePlan(problem);
  for (int64_t c = 1; c < 60; ++c) {
    problem.reserve = c;
    const auto other = MakePlan(problem);
    if (!other.ok() || !other->meets_target) continue;
    EXPECT_GE(other->response.lower, lower.response.lower - 1e-12) << c;
  }
  problem.reserve = 0;
  problem.goal = core::TuningGoal::kSurrogate;
  EXPECT_EQ(MakePlan(problem)->c(), 3);
}

TEST(MakePlan, RefusesWithTheReason) {
  Problem problem = Bloom(5);
  absl::Status status = MakePlan(problem).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("it exceeds it by"));
  problem = Bloom(0.2);
  problem.servers.resize(2);
  status = MakePlan(problem).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  // 27 blocks each.
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("the pool holds 54 of 70 blocks; 16 blocks (22.88 GB) more"));
  problem = Bloom(0.2);
  problem.reserve = 100'000;
  EXPECT_EQ(MakePlan(problem).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(Changes, LossAndGain) {
  const Problem problem = Bloom(1.2);
  const Plan plan = *MakePlan(problem);
  const std::vector<Change> changes = Changes(problem, plan);
  int64_t lost = 0, added = 0;
  for (const Change& change : changes) {
    (change.what.rfind("lose", 0) == 0 ? lost : added) += change.alike;
    if (change.what.rfind("lose", 0) != 0) continue;
    EXPECT_LE(change.rate_at_once, plan.chosen.rate) << change.what;
    EXPECT_EQ(change.at_once.has_value(), change.rate_at_once > 1.2) << change.what;
  }
  EXPECT_EQ(added, 20);
  EXPECT_EQ(lost, std::count_if(plan.chosen.placement.ranges.begin(), plan.chosen.placement.ranges.end(),
                                [](const core::BlockRange& range) { return range.count > 0; }));
}

TEST(SweepDemand, NeverFewerJobsPerSecondThanAsked) {
  const auto points = SweepDemand(Bloom(1), *ParseDemands("0.1:3:0.1"));
  ASSERT_EQ(points.size(), 30u);
  bool carried = true;
  for (const SweepPoint& point : points) {
    EXPECT_TRUE(carried || !point.plan.has_value()) << point.demand;
    carried = point.plan.has_value();
    if (!carried) continue;
    EXPECT_GT(point.plan->chosen.rate, point.demand);
  }
  EXPECT_FALSE(carried);
  EXPECT_THAT(SweepText(points), HasSubstr("<- c changes"));
  EXPECT_EQ(SweepTable(points).rows.size(), 30u);
  EXPECT_EQ(SweepJson(points)[29]["carried"], false);
}

TEST(ExpectedResponse, IsExactForTwoSpeeds) {
  const std::vector<core::ServerChain> chains = {{{}, 1, 2}, {{}, 2, 1}, {{}, 2, 2}};
  const Response response = *ExpectedResponse(chains, 0.7 * 3.5);
  // Golden: mu 1 and 0.5, c 2 and 3, rho 0.7.
  EXPECT_NEAR(*response.exact, 1.74010, 5e-6);
  EXPECT_FALSE(ExpectedResponse(chains, 3.5).has_value());
}

TEST(Output, HasEveryServerAndChain) {
  Problem problem = Bloom(1.2);
  problem.servers[0].name = "<fast> & \"first\"";
  const Plan plan = *MakePlan(problem);
  const std::string svg = PlanSvg(problem, plan), text = PlanText(problem, plan, Changes(problem, plan));
  EXPECT_THAT(svg, HasSubstr("&lt;fast&gt; &amp; "));
  EXPECT_THAT(text, HasSubstr("<fast> & \"first\" (0-"));
  const auto json = PlanJson(problem, plan, {});
  EXPECT_EQ(json["servers"].size(), 20u);
  EXPECT_EQ(json["chains"].size(), plan.chosen.chains.size());
  int blocks = 0;
  for (const auto& hop : json["chains"][0]["hops"]) blocks += hop["blocks"].get<int>();
  EXPECT_EQ(blocks, 70);
}

}  // namespace
}  // namespace bfio::plan
