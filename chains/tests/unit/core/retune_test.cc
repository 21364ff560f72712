// When serving chains no longer fit the demand, and for how long that must have been so.
#include "chains/core/tuning.h"

#include "absl/strings/str_cat.h"
#include "common/base/rng.h"
#include "common/stats/arrival_rate.h"
#include "gtest/gtest.h"

namespace bfio::core {
namespace {

// With memory for one request at a time a server holds all six blocks; for 6 requests it takes two servers.
const BlockSizes kSizes = {6, 100, 10};
constexpr int64_t kSlots = 6;

// Alone a server takes 9 s per request, two take 12 s for up to 6 requests.
std::vector<PoolServer> Four() {
  std::vector<PoolServer> servers;
  for (int i = 0; i < 4; ++i) {
    servers.push_back({absl::StrCat(i), 660});
    servers.back().times = {1, 3};
  }
  return servers;
}

std::vector<ExistingChain> Composed(absl::Span<const PoolServer> servers, const BlockSizes& sizes,
                                    int64_t slots, double demand) {
  const auto plan = PlanChains(servers, sizes, slots, demand);
  EXPECT_TRUE(plan.ok()) << plan.status();
  std::vector<ExistingChain> standing;
  for (const ServerChain& chain : plan->chains)
    standing.push_back({chain.rate(), chain.capacity, ServersOf(chain)});
  return standing;
}

TEST(BetterCompositionTest, ChainsThatDoNotCarryTheDemandAreReplaced) {
  const std::vector<PoolServer> servers = Four();
  // They carry 4 / 9 requests per second.
  const auto alone = Composed(servers, kSizes, kSlots, 0.01);
  ASSERT_EQ(alone.size(), 4u);
  EXPECT_FALSE(BetterComposition(servers, kSizes, kSlots, 0.01, 1.25, alone).has_value());
  const auto near = BetterComposition(servers, kSizes, kSlots, 0.4, 1.25, alone);
  ASSERT_TRUE(near.has_value());
  EXPECT_TRUE(near->near_overload);
  EXPECT_FALSE(near->overload);
  EXPECT_DOUBLE_EQ(near->now.rate, 4 / 9.0);
  EXPECT_GT(near->then.rate, 0.8) << "composed for twice the demand";
  EXPECT_EQ(near->demand, 0.8);
  const auto over = BetterComposition(servers, kSizes, kSlots, 0.5, 1.25, alone);
  ASSERT_TRUE(over.has_value());
  EXPECT_TRUE(over->overload);
  EXPECT_FALSE(std::isinf(over->then.bound));
  EXPECT_FALSE(BetterComposition(servers, kSizes, kSlots, 0.2, 10, alone).has_value())
      << "nothing carries the upper end, and the chains carry the demand";
  // If no composition carries the demand, a larger rate is better.
  const auto beyond = BetterComposition(servers, kSizes, kSlots, 50, 1.25, alone);
  ASSERT_TRUE(beyond.has_value());
  EXPECT_GT(beyond->then.rate, 1.1 * beyond->now.rate);
  const auto most = Composed(servers, kSizes, kSlots, 50);
  EXPECT_FALSE(BetterComposition(servers, kSizes, kSlots, 50, 1.25, most).has_value());
}

TEST(BetterCompositionTest, NothingIsReplacedThatIsBetterAtTheUpperEndOfTheBand) {
  const std::vector<PoolServer> servers = Four();
  const auto many = Composed(servers, kSizes, kSlots, 0.8);
  int replaced = 0, better_at_high_only = 0;
  for (const double band : {1.25, 4.0}) {
    for (double demand = 0.02; demand < 0.5; demand += 0.005) {
      const auto better = BetterComposition(servers, kSizes, kSlots, demand, band, many);
      const auto other = Composed(servers, kSizes, kSlots, demand);
      const bool worse = ResponseOf({}, many, band * demand) < ResponseOf({}, other, band * demand);
      const bool gains = ResponseOf({}, other, demand).bound < 0.9 * ResponseOf({}, many, demand).bound;
      EXPECT_EQ(better.has_value(), gains && !worse) << demand << " " << band;
      replaced += better.has_value();
      better_at_high_only += gains && worse;
    }
  }
  EXPECT_GT(replaced, 10);
  EXPECT_GT(better_at_high_only, 10);
}

TEST(BetterCompositionTest, TheBandIsTwoStandardDeviationsOfTheMeasuredRate) {
  EXPECT_DOUBLE_EQ(RateBand(10, 60), kRetuneBand);
  EXPECT_DOUBLE_EQ(RateBand(0.1, 60), 1 + 2 / std::sqrt(12.0));
}

TEST(BetterCompositionTest, AtAConstantDemandThereAreAtMostTwoChangeOvers) {
  Rng rng(7);
  int replaced = 0, kept = 0;
  for (int round = 0; round < 150; ++round) {
    SCOPED_TRACE(round);
    const BlockSizes sizes = {static_cast<int32_t>(4 + rng.Below(20)), 100,
                              static_cast<int64_t>(5 + rng.Below(20))};
    std::vector<PoolServer> servers(6 + rng.Below(15));
    for (size_t j = 0; j < servers.size(); ++j) {
      servers[j] = {absl::StrCat(j), static_cast<int64_t>(110 * (2 + rng.Below(sizes.blocks)))};
      servers[j].times = {0.1 + rng.Uniform(), rng.Uniform()};
    }
    const auto slots = static_cast<int64_t>(2 + rng.Below(30));
    const auto most = PlanChains(servers, sizes, slots, 1e6);
    if (!most.ok()) continue;
    const double capacity = TotalRate(Rates(most->chains));
    auto standing = Composed(servers, sizes, slots, (0.05 + 0.9 * rng.Uniform()) * capacity);
    const double demand = (0.05 + 0.9 * rng.Uniform()) * capacity;
    int changes = 0;
    while (const auto better = BetterComposition(servers, sizes, slots, demand, 1.25, standing)) {
      // The first change may be to a composition that carries twice the demand.
      ASSERT_LE(++changes, 2);
      const auto after = Composed(servers, sizes, slots, better->demand);
      EXPECT_DOUBLE_EQ(ResponseOf({}, after, demand).rate, better->then.rate);
      EXPECT_FALSE(ResponseOf({}, standing, 1.25 * demand) < ResponseOf({}, after, 1.25 * demand));
      standing = after;
    }
    ++(changes > 0 ? replaced : kept);
  }
  EXPECT_GT(replaced, 30);
  EXPECT_GT(kept, 30);
}

// --- patience ---

Retuning Faster(double by_s) {
  Retuning better;
  better.now.bound = 10;
  better.then.bound = 10 - by_s;
  return better;
}

Retuning Overloaded(bool far) {
  Retuning better = Faster(0);
  better.near_overload = true;
  better.overload = far;
  if (far) better.now.bound = std::numeric_limits<double>::infinity();
  return better;
}

// The second in which a change-over is made, with a check every second from `start` on; -1: not within 2,000.
int ChangedAfter(RetunePatience& patience, const std::optional<Retuning>& better, int start = 0) {
  for (int s = 0; s < 2000; ++s) {
    if (patience.Check(start + s, better, {60, 60})) return s;
  }
  return -1;
}

TEST(RetunePatienceTest, AnOverloadLastsAMinuteAndANearOneFive) {
  RetunePatience patience;
  EXPECT_EQ(ChangedAfter(patience, Overloaded(true)), 60);
  patience.Forget();
  EXPECT_EQ(ChangedAfter(patience, Overloaded(false)), 300);
  patience.Forget();
  EXPECT_EQ(ChangedAfter(patience, std::nullopt), -1);
}

TEST(RetunePatienceTest, AFasterResponseIsBoughtWhenTheLossHasReachedTheCostOfThePause) {
  RetunePatience patience;
  // A pause of 60 s costs 1,800 s for one request per second.
  EXPECT_EQ(ChangedAfter(patience, Faster(2)), 900);
  patience.Forget();
  EXPECT_EQ(ChangedAfter(patience, Faster(9)), 300) << "not before the rate has been measured anew";
}

TEST(RetunePatienceTest, OneCheckWithoutAGainBeginsAnew) {
  RetunePatience patience;
  for (int s = 0; s < 290; ++s) EXPECT_FALSE(patience.Check(s, Overloaded(false), {60, 60}));
  EXPECT_FALSE(patience.Check(290, std::nullopt, {60, 60}));
  EXPECT_EQ(ChangedAfter(patience, Overloaded(false), 291), 300);
  // An overload that becomes a near one.
  patience.Forget();
  for (int s = 0; s < 50; ++s) EXPECT_FALSE(patience.Check(s, Overloaded(true), {60, 60}));
  EXPECT_FALSE(patience.Check(50, Overloaded(false), {60, 60}));
  EXPECT_EQ(ChangedAfter(patience, Overloaded(true), 51), 60);
}

// The measured rate of a constant demand varies, but chains that are composed for it stay.
TEST(RetunePatienceTest, AConstantDemandChangesNothingInFourHours) {
  const std::vector<PoolServer> servers = Four();
  constexpr double kMemory = 60;
  for (const double demand : {0.05, 0.2, 0.5, 0.8}) {
    SCOPED_TRACE(demand);
    const auto standing = Composed(servers, kSizes, kSlots, demand);
    Rng rng(3);
    ArrivalRate rate(kMemory);
    RetunePatience patience;
    double arrival = rng.Exponential() / demand;
    for (double now = kMemory; now < 4 * 3600; now += 15) {
      for (; arrival < now; arrival += rng.Exponential() / demand) rate.OnArrival(arrival);
      const double measured = rate.Rate(now);
      const auto better =
          BetterComposition(servers, kSizes, kSlots, measured, RateBand(measured, kMemory), standing);
      ASSERT_FALSE(patience.Check(now, better, {kMemory, 60})) << now << " s: " << measured;
    }
  }
}

}  // namespace
}  // namespace bfio::core
