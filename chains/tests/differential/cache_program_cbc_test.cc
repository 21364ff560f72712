// Cache capacities of composed chains: the project's own search against the optimum that CBC, an external
// integer programming solver, proves.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "chains/core/tuning.h"
#include "chains/sim/cache_program.h"
#include "common/base/rng.h"
#include "tests/differential/cbc.h"

namespace bfio::testing {
namespace {

sim::CacheProgram RandomProgram(Rng& rng, core::ChainPlan& plan) {
  for (;;) {
    const core::ChainService service = {static_cast<int32_t>(4 + rng.Below(16)), 1,
                                        0.05 + 0.1 * rng.Uniform()};
    std::vector<core::ChainServer> servers;
    for (uint64_t j = 0, count = 6 + rng.Below(9); j < count; ++j)
      servers.push_back({"", 2 + 4 * rng.Uniform(), 2 * rng.Uniform(), 0.05 + rng.Uniform()});
    plan = core::PlanWithReserve(servers, service, static_cast<int64_t>(1 + rng.Below(5)), {});
    if (plan.chains.size() < 3) continue;
    return {plan.chains, core::AllCacheSlots(servers, service, plan.placement.ranges),
            plan.rate * (0.3 + 0.7 * rng.Uniform())};
  }
}

TEST(CacheProgram, OwnSearchFindsCbcsProvenOptimum) {
  if (!HaveCbc()) GTEST_SKIP() << "no cbc program";
  Rng rng(5);
  for (int i = 0; i < 40; ++i) {
    core::ChainPlan plan;
    const sim::CacheProgram program = RandomProgram(rng, plan);
    const auto own = sim::SolveCacheProgram(program, 20'000'000);
    ASSERT_TRUE(own.has_value());
    ASSERT_TRUE(own->optimal) << "program " << i;
    const auto cbc = RunCbc(sim::CacheProgramLp(program), 60);
    ASSERT_TRUE(cbc.ok()) << cbc.status();
    ASSERT_TRUE(cbc->optimal);
    double jobs = 0, rate = 0;
    for (size_t k = 0; k < program.chains.size(); ++k) {
      const auto value = cbc->values.find(absl::StrCat("c_", k));
      if (value == cbc->values.end()) continue;
      jobs += value->second;
      rate += value->second * program.chains[k].rate();
    }
    EXPECT_EQ(own->jobs, std::llround(jobs)) << "program " << i;
    EXPECT_GE(rate, program.needed_rate * (1 - 1e-6));
    const auto greedy = sim::JobServersNeeded(plan.chains, program.needed_rate);
    ASSERT_TRUE(greedy.has_value());
    EXPECT_GE(*greedy, own->jobs);
  }
}

TEST(CacheProgram, ReportsInfeasiblePrograms) {
  Rng rng(6);
  core::ChainPlan plan;
  sim::CacheProgram program = RandomProgram(rng, plan);
  int64_t slots = 0;
  for (const int64_t s : program.slots) slots += s;
  program.needed_rate = static_cast<double>(slots) * program.chains[0].rate() * 1.1;
  EXPECT_FALSE(sim::SolveCacheProgram(program, 1'000'000).has_value());
  EXPECT_FALSE(sim::JobServersNeeded(plan.chains, plan.rate * 1.1).has_value());
}

}  // namespace
}  // namespace bfio::testing
