// The choice of each dispatch rule for an arrival, and its queueing behaviour.
#include "research/chains/dispatcher.h"

#include <gmock/gmock.h>

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "common/base/rng.h"
#include "research/chains/chain_queue.h"
#include "tests/testing/one_group.h"

namespace bfio::core {
namespace {

std::unique_ptr<ChainDispatcher> Make(const char* name) {
  return *MakeChainDispatcher(name, 1);
}

TEST(ChainDispatcher, Rules) {
  // Chains are listed fastest first; the first one is full.
  const std::vector<ChainView> chains = {{1, 2, 2}, {0.5, 4, 2}, {0.25, 4, 1}, {0.2, 4, 1}};
  EXPECT_EQ(Make("jffc")->OnArrival(chains), 1);
  EXPECT_EQ(Make("sa_jsq")->OnArrival(chains), 2);
  // Expected delay 1 + 1/2 on the full chain, 2 on the next.
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

TEST(ChainDispatcher, AnUnknownRuleIsRefusedWithTheKnownNames) {
  EXPECT_EQ(MakeChainDispatcher("best", 1).status().message(),
            "rule 'best' is unknown, choose one of jffc, sa_jsq, sed, jsq, jiq");
}

TEST(ServeOnChains, CentralQueueGoesToTheFirstFreeChain) {
  // Jobs of size 1 on chains that serve one in 1 s and in 3 s: the third and the fourth job wait for the fast
  // chain.
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
  // By expected delay all jobs go to the fast chain: 1, 2 and 3 against 3.5.
  const std::vector<ChainRate> chains = {{1, 1}, {1 / 3.5, 1}};
  const std::vector<sim::ChainJob> jobs = {{0, 1}, {0.1, 1}, {0.2, 1}};
  const auto served = sim::ServeOnChains(chains, *Make("sed"), jobs);
  for (const sim::ServedJob& job : served) EXPECT_EQ(job.chain, 0);
  EXPECT_NEAR(served[2].wait, 1.8, 1e-12);
}

// Runs a stream of jobs through the router's scheduler, with every chain as a worker without a barrier.
// Returns the chain of each job.
std::vector<int32_t> DispatchedByScheduler(absl::Span<const ChainRate> chains, const char* policy,
                                           absl::Span<const sim::ChainJob> jobs) {
  SchedulerOptions options;
  options.max_waiting = static_cast<int64_t>(jobs.size());
  bfio::testing::OneGroup scheduler(options, *MakePolicy(policy, {}), nullptr, GroupKind::kIndependent);
  std::vector<EpochMember> members(chains.size());
  for (size_t k = 0; k < chains.size(); ++k) {
    members[k].spec = {.slots = static_cast<int32_t>(chains[k].capacity),
                       .kv_tokens = int64_t{1} << 40,
                       .service_time = 1 / chains[k].rate};
  }
  EXPECT_TRUE(scheduler.OpenEpoch(members).empty());
  std::vector<int32_t> chosen(jobs.size(), -1);
  std::vector<int64_t> steps(chains.size()), planned(chains.size()), active(chains.size());
  // Running jobs by their time of completion, then by the order in which they started.
  std::map<std::pair<double, int64_t>, std::pair<size_t, int32_t>> ends;
  int64_t begun = 0;
  const auto report = [&](int32_t k, std::vector<RequestId> finished) {
    active[k] -= static_cast<int64_t>(finished.size());
    StepReport out;
    out.step = ++steps[k];
    out.applied_plan = planned[k];
    out.finished = finished;
    out.group_idle = active[k] == 0;
    EXPECT_TRUE(scheduler.OnReport(k, out).ok());
  };
  const auto dispatch = [&](double now) {
    while (const auto plan = scheduler.MakePlan()) {
      for (const Placement& placement : plan->placements) {
        const size_t job = placement.id - 1;
        chosen[job] = placement.worker;
        ends[{now + jobs[job].size / chains[placement.worker].rate, begun++}] = {job, placement.worker};
        ++active[placement.worker];
        planned[placement.worker] = plan->apply_steps[placement.worker];
        report(placement.worker, {});
      }
    }
  };
  const auto end_first = [&] {
    const auto [at, what] = *ends.begin();
    ends.erase(ends.begin());
    report(what.second, {what.first + 1});
    dispatch(at.first);
  };
  for (size_t job = 0; job < jobs.size(); ++job) {
    while (!ends.empty() && ends.begin()->first.first <= jobs[job].arrival) end_first();
    EXPECT_TRUE(scheduler.Enqueue({.id = job + 1, .prefill_tokens = 1, .max_new_tokens = 1}).ok());
    dispatch(jobs[job].arrival);
  }
  while (!ends.empty()) end_first();
  return chosen;
}

// The router's policy and the simulator's queue implement the same rule: every job gets the same chain.
TEST(ServeOnChains, TheRoutersPolicyDispatchesAlike) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    Rng rng(seed);
    std::vector<ChainRate> chains;
    for (double rate = 1; chains.size() < 6; rate *= 0.5 + 0.5 * rng.Uniform())
      chains.push_back({rate, 1 + static_cast<int64_t>(rng.Below(5))});
    for (const double load : {0.5, 0.95}) {
      const auto jobs = sim::PoissonJobs(load * TotalRate(chains), 3000, seed);
      const auto served = sim::ServeOnChains(chains, *Make("jffc"), jobs);
      const std::vector<int32_t> routed = DispatchedByScheduler(chains, "jffc", jobs);
      ASSERT_EQ(served.size(), routed.size());
      for (size_t job = 0; job < jobs.size(); ++job)
        ASSERT_EQ(routed[job], served[job].chain) << "seed " << seed << ", job " << job;
    }
  }
}

}  // namespace
}  // namespace bfio::core
