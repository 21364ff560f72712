// Plans and refusals on the paper's pool.
#include "chains/plan/planner.h"

#include <gmock/gmock.h>

#include "absl/strings/str_cat.h"
#include "chains/plan/input.h"
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
  const Problem problem = Bloom(0.2);
  const Plan lower = *MakePlan(problem);
  for (int64_t c = 1; c < 60; ++c) {
    const auto other = core::PlanWithReserve(problem.servers, problem.service, c, problem.demand);
    if (problem.demand.needed() > other.rate) continue;
    const double jobs = core::OccupancyBounds(core::Rates(other.chains), problem.demand.rate).lower;
    EXPECT_GE(jobs / problem.demand.rate, lower.response.lower - 1e-12) << c;
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
    const char* why;
  };
  for (const Row& row :
       {Row{5, 20, "rate: the demand of 5 jobs/s"}, Row{5, 20, "the excess is"},
        // Every server holds 27 blocks.
        Row{0.2, 2, "the pool holds 54 of 70 blocks; memory for 16 more blocks (22.88 GB)"}}) {
    Problem problem = Bloom(row.demand);
    problem.servers.resize(row.servers);
    const absl::Status status = MakePlan(problem).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()), HasSubstr(row.why));
  }
}

TEST(Plans, EndOnASignal) {
  const Problem problem = Bloom(1.2);
  int left = 5;
  const auto go_on = [&] { return left-- > 0; };
  EXPECT_TRUE(absl::IsCancelled(MakePlan(problem, go_on).status()));
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

TEST(Output, HasEveryServerAndChain) {
  Problem problem = Bloom(1.2);
  problem.servers[0].name = "<fast> & \"first\"";
  problem.servers[1].name = std::string("\n") + "ä" + std::string(30, 'x');
  const Plan plan = *MakePlan(problem);
  const std::string text = PlanText(problem, plan);
  EXPECT_THAT(text, HasSubstr("<fast> & \"first\" (0-"));
  const auto json = PlanJson(problem, plan);
  EXPECT_EQ(json["servers"].size(), 20u);
  EXPECT_EQ(json["chains"].size(), plan.chosen.chains.size());
  int blocks = 0;
  for (const auto& hop : json["chains"][0]["hops"]) blocks += hop["blocks"].get<int>();
  EXPECT_EQ(blocks, 70);
}

// --- input ---

// Input files of pools and models: what is read from them, and an error message for every mistake.

std::string ModelError(const char* text) {
  return std::string(ParseModel(text, "m.json").status().message());
}

constexpr char kBloom[] = R"({"blocks": 70, "block_gb": 1.32, "cache_gb": 0.11})";

std::string PoolError(const std::string& server) {
  const std::string text = "{\"servers\": [" + server + "]}";
  return std::string(ParsePool(text, "p.json", *ParseModel(kBloom, "m.json")).status().message());
}

TEST(ParseModel, Sizes) {
  const core::ChainService sizes = *ParseModel(kBloom, "m.json");
  EXPECT_EQ(sizes.blocks, 70);
  EXPECT_EQ(sizes.block_size, 1.32);
  EXPECT_EQ(sizes.cache_size, 0.11);
}

TEST(ParseModel, Mistakes) {
  EXPECT_EQ(ModelError("[1]"), "m.json: is not a JSON object");
  EXPECT_EQ(ModelError(R"({"block_gb": 1, "cache_gb": 1})"), "m.json: blocks is missing");
  EXPECT_EQ(ModelError(R"({"blocks": 1.5, "block_gb": 1, "cache_gb": 1})"),
            "m.json: blocks is 1.5; must be an integer");
  EXPECT_EQ(ModelError(R"({"blocks": 2, "block_gb": "1", "cache_gb": 1})"),
            "m.json: block_gb is '1'; must be a number");
  EXPECT_THAT(ModelError(R"({"blocks": 2, "block_gb": 1, "cash_gb": 1})"), HasSubstr("'cash_gb' is unknown"));
  EXPECT_EQ(ModelError(R"({"blocks": 2, "block_gb": 0, "cache_gb": 1})"),
            "m.json: block_gb is 0; must be at least 1e-09");
}

TEST(ParsePool, TimesAndNames) {
  const auto servers = *ParsePool(
      R"({"servers": [{"name": "fast", "count": 2, "memory_gb": 40, "block_ms": 109, "communication_ms": 760},
                      {"memory_gb": 20, "block_ms": 175, "communication_ms": 760}]})",
      "p.json", *ParseModel(kBloom, "m.json"));
  ASSERT_EQ(servers.size(), 3u);
  EXPECT_EQ(servers[1].name, "fast-1");
  EXPECT_EQ(servers[2].name, "server-1");
  EXPECT_NEAR(servers[0].compute, 0.109, 1e-12);
  EXPECT_NEAR(servers[0].communication, 0.76, 1e-12);
  EXPECT_NEAR(servers[2].compute, 0.175, 1e-12);
  EXPECT_NEAR(servers[2].communication, 0.76, 1e-12);
}

TEST(ParsePool, Mistakes) {
  EXPECT_THAT(PoolError(R"({"memory_gb": 20, "block_ms": 1})"),
              HasSubstr("p.json: servers[0]: communication_ms is missing"));
  EXPECT_THAT(PoolError(R"({"block_ms": 1, "communication_ms": 1})"), HasSubstr("memory_gb is missing"));
  EXPECT_THAT(PoolError(R"({"memory_gb": -1, "block_ms": 1, "communication_ms": 1})"),
              HasSubstr("memory_gb is -1; must be"));
  EXPECT_THAT(PoolError(R"({"memory_gb": 1, "memory": 2, "block_ms": 1, "communication_ms": 1})"),
              HasSubstr("'memory'"));
  EXPECT_THAT(PoolError(R"({"memory_gb": 1, "communication_ms": 1})"), HasSubstr("block_ms is missing"));
  EXPECT_THAT(PoolError("7"), HasSubstr("servers[0]: is not a JSON object"));
  EXPECT_THAT(PoolError(""), HasSubstr("1 to 1024 servers, not 0"));
  EXPECT_THAT(PoolError(R"({"count": 2000, "memory_gb": 1, "block_ms": 1, "communication_ms": 1})"),
              HasSubstr("count is 2000; must be"));
  EXPECT_THAT(PoolError(R"({"name": "a", "count": 2, "memory_gb": 1, "block_ms": 1, "communication_ms": 1},
                           {"name": "a-1", "memory_gb": 1, "block_ms": 1, "communication_ms": 1})"),
              HasSubstr("servers[0] and servers[1] have the same name 'a-1'"));
  EXPECT_THAT(PoolError(R"({"memory_gb": 1, "block_ms": 1, "communication_ms": 1e250})"),
              HasSubstr("within 0..1e9 s"));
  EXPECT_THAT(PoolError(R"({"memory_gb": 1e300, "block_ms": 1, "communication_ms": 1})"),
              HasSubstr("holds more than"));
  EXPECT_THAT(std::string(ParsePool(R"({"server": []})", "p.json", {}).status().message()),
              HasSubstr("the list 'servers'"));
}

}  // namespace
}  // namespace bfio::plan
