// Plans, the effect of losing or adding servers, and refusals on the paper's pool.
#include "chains/plan/planner.h"

#include <gmock/gmock.h>

#include "absl/strings/str_cat.h"
#include "chains/plan/output.h"

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

TEST(MakePlan, HasTheLeastLowerBound) {
  Problem problem = Bloom(0.2);
  const Plan lower = *MakePlan(problem);
  for (int64_t c = 1; c < 60; ++c) {
    problem.reserve = c;
    const auto other = MakePlan(problem);
    if (!other.ok() || !other->meets_target) continue;
    EXPECT_GE(other->response.lower, lower.response.lower - 1e-12) << c;
  }
}

TEST(MakePlan, AllServersShortenTheResponse) {
  Problem problem = Bloom(0.2);
  const Plan few = *MakePlan(problem);
  problem.demand.use_all = true;
  const Plan all = *MakePlan(problem);
  EXPECT_LT(all.response.lower, few.response.lower);
  const auto used = [](const Plan& plan) {
    return std::count_if(plan.chosen.placement.ranges.begin(), plan.chosen.placement.ranges.end(),
                         [](const BlockRange& range) { return range.count > 0; });
  };
  EXPECT_EQ(used(all), 20);
  EXPECT_LT(used(few), 20);
}

TEST(MakePlan, RefusesWithTheReason) {
  struct Row {
    double demand;
    size_t servers;
    int64_t reserve;
    const char* why;
  };
  for (const Row& row :
       {Row{5, 20, 0, "rate: the demand of 5 jobs/s"}, Row{5, 20, 0, "the excess is"},
        // Every server holds 27 blocks.
        Row{0.2, 2, 0, "the pool holds 54 of 70 blocks; memory for 16 more blocks (22.88 GB)"},
        Row{0.2, 20, 200, "memory: with a reserve of 200 jobs per block the pool holds 4 of 70"},
        Row{4, 20, 7, "rate: with a reserve of 7"}}) {
    Problem problem = Bloom(row.demand);
    problem.servers.resize(row.servers);
    problem.reserve = row.reserve;
    const absl::Status status = MakePlan(problem).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()), HasSubstr(row.why));
  }
  Problem problem = Bloom(0.2);
  problem.reserve = 100'000;
  EXPECT_EQ(MakePlan(problem).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(Changes, LossAndGainPlannedAgainAreCloseToTheBest) {
  for (const double demand : {0.3, 1.0, 1.2, 1.8}) {
    const Problem problem = Bloom(demand);
    const Plan plan = *MakePlan(problem);
    int64_t lost = 0, added = 0;
    const std::vector<Change> changes = *Changes(problem, plan);
    for (const Change& change : changes) {
      SCOPED_TRACE(absl::StrCat(demand, " ", change.what));
      Problem changed = problem;
      if (change.what.rfind("add another ", 0) == 0) {
        added += change.alike;
        changed.servers.push_back(changed.servers[change.what[12] == 'f' ? 0 : 19]);
      } else {
        lost += change.alike;
        changed.servers.erase(changed.servers.begin() + (change.what[5] == 'f' ? 0 : 19));
        EXPECT_LE(change.rate_at_once, plan.chosen.rate);
        EXPECT_EQ(change.at_once.has_value(), change.rate_at_once > demand);
      }
      const auto best = MakePlan(changed);
      ASSERT_EQ(change.planned.has_value(), best.ok());
      if (!best.ok()) continue;
      EXPECT_GT(change.rate_planned, demand);
      EXPECT_LE(change.planned->lower, 1.05 * best->response.lower);
    }
    EXPECT_EQ(added, 20);
    EXPECT_EQ(lost, std::count_if(plan.chosen.placement.ranges.begin(), plan.chosen.placement.ranges.end(),
                                  [](const BlockRange& range) { return range.count > 0; }));
  }
}

TEST(Plans, EndOnASignal) {
  const Problem problem = Bloom(1.2);
  const Plan plan = *MakePlan(problem);
  int left = 5;
  const auto go_on = [&] { return left-- > 0; };
  EXPECT_TRUE(absl::IsCancelled(MakePlan(problem, go_on).status()));
  left = 1;
  EXPECT_TRUE(absl::IsCancelled(Changes(problem, plan, go_on).status()));
}

TEST(MakePlan, NeverFewerJobsPerSecondThanDemanded) {
  bool carried = true;
  for (const double demand : {0.1, 0.4, 1.0, 1.6, 2.0, 2.4, 3.0}) {
    const auto plan = MakePlan(Bloom(demand));
    EXPECT_TRUE(carried || !plan.ok()) << demand;
    carried = plan.ok();
    EXPECT_TRUE(!carried || plan->chosen.rate > demand);
  }
  EXPECT_FALSE(carried);
}

TEST(ExpectedResponse, IsExactForTwoSpeeds) {
  const std::vector<core::ServerChain> chains = {{{}, 1, 2}, {{}, 2, 1}, {{}, 2, 2}};
  // Expected value computed for mu 1 and 0.5, c 2 and 3, rho 0.7.
  EXPECT_NEAR(*ExpectedResponse(chains, 0.7 * 3.5)->exact, 1.74010, 5e-6);
  EXPECT_FALSE(ExpectedResponse(chains, 3.5).has_value());
}

TEST(Output, HasEveryServerAndChain) {
  Problem problem = Bloom(1.2);
  problem.servers[0].name = "<fast> & \"first\"";
  problem.servers[1].name = std::string("\n") + "ä" + std::string(30, 'x');
  const Plan plan = *MakePlan(problem);
  const std::string text = PlanText(problem, plan, *Changes(problem, plan));
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
