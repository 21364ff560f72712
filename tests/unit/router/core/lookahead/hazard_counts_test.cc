// Hazard counts and survival tables against a Kaplan-Meier estimate computed directly from its definition.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "common/base/rng.h"
#include "router/core/lookahead/survival_model.h"

namespace bfio::core {
namespace {

constexpr double kForever = std::numeric_limits<double>::infinity();

TEST(AgeLattice, BinsTileTheAges) {
  for (const int32_t per_octave : {1, 4, 16, 64}) {
    const AgeLattice lattice(per_octave);
    int32_t bin = 0;
    for (int64_t token = 1; token < 20'000; ++token) {
      if (lattice.Bin(token) != bin) {
        ASSERT_EQ(lattice.Bin(token), ++bin);
        ASSERT_EQ(lattice.First(bin), token);
      }
      if (token <= 2 * per_octave) {
        ASSERT_EQ(bin, token - 1) << "young ages have bins of their own";
      }
    }
    EXPECT_EQ(lattice.Bin(AgeLattice::kMaxToken), lattice.bins() - 1);
    EXPECT_EQ(lattice.Bin(10 * AgeLattice::kMaxToken), lattice.bins() - 1);
  }
}

TEST(HazardCounts, DecayIsOneOverEPerMemoryAndSurvivesRescaling) {
  HazardCounts counts(AgeLattice(16), 10);
  counts.Observe(0, 3, true);
  for (int i = 0; i < 10; ++i) counts.Observe(0, 5, true);
  EXPECT_NEAR(counts.Ended(2), std::exp(-1.1), 1e-12);
  for (int i = 0; i < 10'000; ++i) counts.Observe(0, 5, true);  // weights reach e^1000 meanwhile
  EXPECT_NEAR(counts.Ended(2), 0, 1e-12);
  const double stationary = 1 / (std::exp(0.1) - 1);  // sum of e^(-k / 10), k = 1, 2, ...
  EXPECT_NEAR(counts.Ended(4), stationary, 1e-6);
  EXPECT_NEAR(counts.Exposed(0), stationary, 1e-6);
  EXPECT_EQ(counts.observed(), 10'011);
}

// What is known of one request: it was observed from its token `entry` + 1 on and has generated `age` tokens.
struct History {
  int64_t entry, age;
  bool finished;
};

std::vector<History> RandomHistories(Rng& rng, int count, int64_t most) {
  std::vector<History> histories;
  for (int i = 0; i < count; ++i) {
    const int64_t entry = rng.Below(4) == 0 ? static_cast<int64_t>(rng.Below(5)) : 0;
    const int64_t age = entry + 1 + static_cast<int64_t>(rng.Below(rng.Below(3) == 0 ? most : most / 4));
    histories.push_back({entry, std::min(age, most), rng.Below(3) != 0});
  }
  return histories;
}

// S(t): product over u <= t of 1 - (requests that ended with token u) / (requests that could have ended with
// token u).
std::vector<double> BruteForceKaplanMeier(const std::vector<History>& histories, int64_t most) {
  std::vector<double> survival = {1};
  for (int64_t u = 1; u <= most; ++u) {
    int64_t at_risk = 0, ended = 0;
    for (const History& h : histories) {
      at_risk += h.entry < u && u <= h.age ? 1 : 0;
      ended += h.finished && h.age == u ? 1 : 0;
    }
    survival.push_back(survival.back() *
                       (at_risk == 0 ? 1 : 1 - static_cast<double>(ended) / static_cast<double>(at_risk)));
  }
  return survival;
}

LookaheadOptions Plain(int32_t ages_per_octave) {
  LookaheadOptions options = {.memory_requests = kForever};
  options.prior_requests = options.pool_requests = 0;
  options.ages_per_octave = ages_per_octave;
  return options;
}

// Feeds the histories interleaved and in several parts each, as a scheduler does.
void Feed(SurvivalModel& model, std::vector<History> histories, Rng& rng) {
  std::vector<int64_t> seen;
  for (const History& h : histories) seen.push_back(h.entry);
  for (bool more = true; more;) {
    more = false;
    for (size_t i = 0; i < histories.size(); ++i) {
      if (seen[i] == histories[i].age) continue;
      const int64_t to = std::min(histories[i].age, seen[i] + 1 + static_cast<int64_t>(rng.Below(20)));
      model.Observe(0, seen[i], to, histories[i].finished && to == histories[i].age);
      seen[i] = to;
      more = true;
    }
  }
  for (int i = 0; i < 64; ++i) model.Advance();
}

TEST(SurvivalModel, EqualsKaplanMeierWhereEveryAgeHasABin) {
  Rng rng(17);
  for (int trial = 0; trial < 50; ++trial) {
    constexpr int64_t kMost = 120;
    const std::vector<History> histories = RandomHistories(rng, 40 + trial, kMost);
    SurvivalModel model(Plain(64));
    Feed(model, histories, rng);
    const std::vector<double> expected = BruteForceKaplanMeier(histories, kMost);
    const double* const table = model.Table(0).From(0);
    int64_t oldest = 0;
    for (const History& h : histories) oldest = std::max(oldest, h.age);
    // Beyond the oldest observed age, and once all requests have ended, the estimate is undefined.
    for (int64_t age = 0; age <= oldest && expected[age] > 1e-8; ++age) {
      ASSERT_NEAR(table[age] / table[0], expected[age], 1e-12) << "trial " << trial << ", age " << age;
    }
  }
}

TEST(SurvivalModel, WideBinsStayCloseToKaplanMeier) {
  Rng rng(18);
  std::vector<History> histories;
  for (int i = 0; i < 4000; ++i) {
    const int64_t length = 1 + static_cast<int64_t>(300 * rng.Gamma(2));
    const int64_t censored = 1 + static_cast<int64_t>(2000 * rng.Uniform());
    histories.push_back({0, std::min(length, censored), length <= censored});
  }
  SurvivalModel model(LookaheadOptions{.memory_requests = kForever});
  Feed(model, histories, rng);
  const std::vector<double> expected = BruteForceKaplanMeier(histories, 2000);
  for (const int64_t age : {10, 50, 100, 300, 600, 1000}) {
    const double* const from = model.Table(0).From(age);
    EXPECT_NEAR(from[100] / from[0], expected[age + 100] / expected[age], 0.03) << age;
  }
}

}  // namespace
}  // namespace bfio::core
