// Shadow policies measure what following them would have saved, and do not affect decisions.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

#include "common/base/rng.h"
#include "router/core/shadow/shadowed_policy.h"
#include "tests/testing/policy_case.h"

namespace bfio::core {
namespace {

using ::testing::ElementsAre;

ShadowSet Shadows(const std::vector<std::string>& names, StopSignal stop = {}) {
  return *MakeShadows({}, names, std::move(stop));
}

// A snapshot must contain the optional data that any of the policies reads.
TEST(ShadowedPolicyTest, AsksForWhatActingPolicyOrShadowsRead) {
  for (const auto& [acting, shadow] :
       {std::pair("least_work", "fcfs"), {"fcfs", "least_work"}, {"fcfs", "lpt"}}) {
    const ShadowedPolicy policy(*MakePolicy(acting, {}), Shadows({shadow}));
    const bool expected = std::string(acting) == "least_work" || std::string(shadow) == "least_work";
    EXPECT_EQ(policy.uses_prefixes(), expected) << acting << ", " << shadow;
    EXPECT_EQ(policy.uses_first_come_waits(), expected) << acting << ", " << shadow;
  }
}

TEST(PlanMeterTest, MeasuresIdleWorkInThePlansStep) {
  // Loads 50 + 20 and 40: idle 2 * 70 - 110.
  const PlanValue value =
      PlanMeter(0.5).Measure(PolicyCase().Worker(50, 1).Worker(40, 1).Waiting(20).View(), {{0, 0}});
  EXPECT_DOUBLE_EQ(value.idle_now, 30);
  EXPECT_DOUBLE_EQ(value.longest_now, 70);
  EXPECT_DOUBLE_EQ(value.idle_ahead, 30);
}

TEST(PlanMeterTest, StepsAheadFollowTheOutlookAndTheCurves) {
  // One step ahead the workers hold 30 and 41, and the request holds 21 with probability 1/3: 37 and 41, idle
  // 4.
  const PolicyCase ahead = PolicyCase().Worker(50, 1).Worker(40, 1).Waiting(20);
  const PlanValue value =
      PlanMeter(0.5).Measure(PolicyCase(ahead).Ahead(1, {50, 30, 40, 41}, {1, 1.0 / 3}).View(), {{0, 0}});
  EXPECT_DOUBLE_EQ(value.idle_now, 30);
  EXPECT_DOUBLE_EQ(value.idle_ahead, (30 + 0.5 * 4) / 1.5);
}

TEST(PlanMeterTest, UnequalWorkersAreMeasuredByTime) {
  std::vector<WorkerView> workers(2);
  workers[0].load_tokens = 50;
  workers[1].load_tokens = 50;
  workers[1].time_per_token = 2;
  workers[1].time_offset = 10;
  const PlanValue value = PlanMeter(1).Measure({1, workers, {}, {}}, {});
  EXPECT_DOUBLE_EQ(value.longest_now, 110);
  EXPECT_DOUBLE_EQ(value.idle_now, 2 * 110 - 160);
}

TEST(PlanMeterTest, PromptsOfThePlanCountTheirPrefillCost) {
  // A request of 20 tokens, with 20 tokens to compute that weigh 3 each: 50 + 80 and 40. One step ahead with
  // probability 1/4: 30 + 21 / 4 + 15 and 41, idle 9.25.
  const PolicyCase ahead = PolicyCase().Worker(50, 1).Worker(40, 1).PrefillWeight(3).Waiting(20);
  const PlanValue value =
      PlanMeter(0.5).Measure(PolicyCase(ahead).Ahead(1, {50, 30, 40, 41}, {1, 0.25}).View(), {{0, 0}});
  EXPECT_DOUBLE_EQ(value.longest_now, 130);
  EXPECT_DOUBLE_EQ(value.idle_now, 90);
  EXPECT_DOUBLE_EQ(value.idle_ahead, (90 + 0.5 * 9.25) / 1.5);
}

TEST(ShadowedPolicyTest, TheDeadlineStopsOnlyTheActingPolicy) {
  PolicyCase crowd;
  Rng rng(3);
  for (int g = 0; g < 32; ++g) crowd.Worker(50'000 + static_cast<int64_t>(rng.Below(5'000)), 2);
  for (int i = 0; i < 300; ++i) crowd.Waiting(1 + static_cast<int64_t>(rng.Below(4'000)));
  PolicyOptions options;
  options.stop = [] { return true; };
  std::unique_ptr<Policy> policy = *MakeShadowedPolicy("bf_io", options, {"bf_io"});
  EXPECT_TRUE(crowd.Call(*policy).stopped_early);
  const ShadowRegret& regret = policy->shadows()->regrets()[0];
  EXPECT_GT(regret.missed.sum(), 0) << "the shadow searched on";
}

// fcfs places the request of 20 tokens on worker 0, which has more free slots: idle 30. least_tokens and
// lpt place it on worker 1: loads 50 and 60, idle 10.
TEST(ShadowSetTest, BetterShadowMeansMissedAndWorseMeansAvoided) {
  const PolicyCase snapshot = PolicyCase().Worker(50, 2).Worker(40, 1).Waiting(20);
  ShadowedPolicy fcfs(*MakePolicy("fcfs", {}), Shadows({"least_tokens"}));
  EXPECT_THAT(snapshot.Decide(fcfs), ElementsAre(0));
  const ShadowRegret& missed = fcfs.shadows()->regrets()[0];
  EXPECT_EQ(missed.policy, "least_tokens");
  EXPECT_EQ(missed.decisions, 1);
  EXPECT_DOUBLE_EQ(missed.missed.sum(), 20);
  EXPECT_EQ(missed.avoided.count(), 0u);
  EXPECT_DOUBLE_EQ(missed.missed_ahead, 20);
  EXPECT_DOUBLE_EQ(missed.longer, -10);
  ShadowedPolicy least(*MakePolicy("least_tokens", {}), Shadows({"fcfs", "lpt"}));
  EXPECT_THAT(snapshot.Decide(least), ElementsAre(1));
  EXPECT_DOUBLE_EQ(least.shadows()->regrets()[0].avoided.sum(), 20);
  EXPECT_DOUBLE_EQ(least.shadows()->regrets()[0].longer, 10);
  EXPECT_EQ(least.shadows()->regrets()[1].avoided.count() + least.shadows()->regrets()[1].missed.count(), 0u);
}

TEST(ShadowSetTest, ShadowsSkippedForLackOfTimeGoFirstNextTime) {
  const PolicyCase snapshot = PolicyCase().Worker(50, 2).Worker(40, 1).Waiting(20);
  int left = 0;
  ShadowedPolicy fcfs(*MakePolicy("fcfs", {}),
                      Shadows({"least_tokens", "round_robin", "lpt"}, [&] { return left-- <= 0; }));
  const auto planned = [&] {
    std::vector<int64_t> decisions;
    for (const ShadowRegret& regret : fcfs.shadows()->regrets()) decisions.push_back(regret.decisions);
    return decisions;
  };
  snapshot.Decide(fcfs);
  EXPECT_THAT(planned(), ElementsAre(0, 0, 0)) << "there was no time at all";
  left = 2;
  snapshot.Decide(fcfs);
  EXPECT_THAT(planned(), ElementsAre(1, 1, 0));
  left = 2;
  snapshot.Decide(fcfs);
  EXPECT_THAT(planned(), ElementsAre(2, 1, 1));
  left = 9;
  snapshot.Decide(fcfs);
  EXPECT_THAT(planned(), ElementsAre(3, 2, 2));
  for (const ShadowRegret& regret : fcfs.shadows()->regrets())
    EXPECT_EQ(regret.decisions + regret.skipped, 4);
}

TEST(ShadowSetTest, ResetClearsRegretsOnly) {
  const PolicyCase snapshot = PolicyCase().Worker(50, 2).Worker(40, 1).Waiting(20);
  ShadowedPolicy fcfs(*MakePolicy("fcfs", {}), Shadows({"least_tokens"}));
  snapshot.Decide(fcfs);
  fcfs.mutable_shadows().ResetRegrets();
  EXPECT_EQ(fcfs.shadows()->regrets()[0].policy, "least_tokens");
  EXPECT_EQ(fcfs.shadows()->regrets()[0].decisions, 0);
  EXPECT_DOUBLE_EQ(fcfs.shadows()->regrets()[0].missed.sum(), 0);
}

TEST(ShadowedPolicyTest, ActsAsThePolicyAlone) {
  const auto alone = *MakePolicy("power_of_two", {});
  ShadowedPolicy shadowed(*MakePolicy("power_of_two", {}), Shadows({"power_of_two", "lpt", "bf_io"}));
  EXPECT_EQ(shadowed.name(), "power_of_two");
  Rng rng(3);
  for (int trial = 0; trial < 200; ++trial) {
    PolicyCase snapshot;
    for (int g = 0; g < 6; ++g) snapshot.Worker(static_cast<int64_t>(rng.Below(999)), 3);
    for (int i = 0; i < 9; ++i) snapshot.Waiting(1 + static_cast<int64_t>(rng.Below(99)));
    ASSERT_EQ(snapshot.Decide(shadowed), snapshot.Decide(*alone)) << "in trial " << trial;
  }
}

TEST(ShadowedPolicyTest, TheHorizonIsThatOfTheActingPolicy) {
  PolicyOptions options;
  options.horizon = 7;
  EXPECT_EQ(ShadowedPolicy(*MakePolicy("br_h", options), Shadows({"lpt"})).horizon(), 7);
  EXPECT_EQ(ShadowedPolicy(*MakePolicy("lpt", options), Shadows({"br_h"})).horizon(), 0);
}

}  // namespace
}  // namespace bfio::core
