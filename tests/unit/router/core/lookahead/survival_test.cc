// What survival learns of whom, and its projections; hazard_counts_test.cc compares its estimates with Kaplan
// and Meier.
#include "router/core/lookahead/survival.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "common/base/rng.h"
#include "router/core/lookahead/survival_model.h"
#include "tests/unit/router/core/lookahead/population.h"

namespace bfio::core {
namespace {

Population::Lengths Geometric(double hazard) {
  return [hazard](uint32_t, Rng& rng) { return GeometricLength(rng, hazard); };
}

TEST(Survival, FollowsDriftWithinItsMemory) {
  SurvivalLookahead quick({.memory_requests = 1000}),
      forever({.memory_requests = std::numeric_limits<double>::infinity()});
  for (SurvivalLookahead* lookahead : {&quick, &forever}) {
    Population people(*lookahead, 400, 1, 6, Geometric(0.05));
    people.Run(2000);
    EXPECT_NEAR(AliveFrom(*lookahead, 10, 20)[20], std::pow(0.95, 20), 0.06);
    people.set_lengths(Geometric(0.005));
    const int64_t before = people.finished();
    while (people.finished() < before + 4000) people.Step();
  }
  const double now = std::pow(0.995, 20);
  EXPECT_NEAR(AliveFrom(quick, 10, 20)[20], now, 0.06);
  EXPECT_LT(AliveFrom(forever, 10, 20)[20], now - 0.2) << "what never forgets does not follow";
}

TEST(Survival, ATenantsOwnDataOutweighThePoolAsTheyGrow) {
  SurvivalLookahead lookahead({.pool_requests = 6});
  Population others(lookahead, 300, 1, 8, Geometric(0.01));
  others.Run(2000);
  const Resident resident = {.group = lookahead.GroupOf(5, 10)};
  const double pooled = AliveFrom(lookahead, 0, 20, 5)[20];
  const double* const all = lookahead.model().Table(0).From(0);
  EXPECT_NEAR(pooled, all[20] / all[0], 1e-9);
  double last = pooled;
  for (const int count : {3, 30, 300}) {
    for (int i = 0; i < count; ++i) lookahead.Observe(resident, {}, 0, 10, true);  // always ten tokens
    for (int i = 0; i < 65; ++i) lookahead.Advance();
    const double alive = AliveFrom(lookahead, 0, 20, 5)[20];
    EXPECT_LT(alive, last) << "after " << count;
    EXPECT_TRUE(count > 3 || alive > 0.6 * pooled) << "three requests are not yet a rule";
    last = alive;
  }
  EXPECT_LT(last, 0.05);
  EXPECT_GT(AliveFrom(lookahead, 0, 20, 0)[20], 0.7) << "the other tenant's are its own";
}

TEST(Survival, TenantsBeyondTheLimitShareOneClass) {
  SurvivalLookahead lookahead({.max_groups = 2});
  const int32_t first = lookahead.GroupOf(10, 50), second = lookahead.GroupOf(20, 50);
  const int32_t shared = lookahead.GroupOf(30, 50);
  EXPECT_NE(first, second);
  EXPECT_NE(second, shared);
  EXPECT_EQ(lookahead.GroupOf(40, 50), shared);
  EXPECT_EQ(lookahead.GroupOf(10, 50), first);
  EXPECT_EQ(lookahead.GroupOf(10, 40), first) << "of the same octave";
  EXPECT_NE(lookahead.GroupOf(10, 64), first);
}

// --- projections ---

struct Crowd {
  std::vector<Resident> residents;
  std::vector<int64_t> known, plan;  // ages: as reported, and at the plan's step
  PlanTime time;
};

// Random requests in all states: started, planned but not started, near their limit, dropped.
Crowd RandomCrowd(Rng& rng, int size) {
  Crowd crowd = {.time = {100, 101 + static_cast<int64_t>(rng.Below(2))}};
  for (int i = 0; i < size; ++i) {
    Resident r = {.id = static_cast<RequestId>(i + 1),
                  .prefill_tokens = 1 + static_cast<int64_t>(rng.Below(2000)),
                  .inflight = rng.Below(8) == 0};
    r.first_step = r.inflight ? crowd.time.plan_step - static_cast<int64_t>(rng.Below(2))
                              : crowd.time.reported_step - static_cast<int64_t>(rng.Below(60));
    const int64_t run = std::max<int64_t>(0, crowd.time.reported_step + 1 - r.first_step);
    r.max_new_tokens = rng.Below(4) == 0 ? run + 1 + static_cast<int64_t>(rng.Below(20)) : 1000;
    r.dropped = rng.Below(30) == 0;
    crowd.residents.push_back(r);
    const int64_t first = r.inflight ? std::max(r.first_step, crowd.time.reported_step + 1) : r.first_step;
    crowd.known.push_back(r.inflight ? 0 : run);
    crowd.plan.push_back(crowd.time.plan_step - first);
  }
  return crowd;
}

TEST(Projection, FarHorizonsAndAgesStayValid) {
  SurvivalLookahead lookahead({});
  Population people(lookahead, 300, 3, 12, Geometric(0.01));
  people.Run(1500);
  Rng rng(13);
  for (uint32_t i = 0; i < 50; ++i) {
    Resident resident = {.first_step = 1 - static_cast<int64_t>(rng.Below(200)),
                         .prefill_tokens = 1 + static_cast<int64_t>(rng.Below(100'000)),
                         .max_new_tokens = 1 << 20};
    resident.generated_tokens = static_cast<int64_t>(rng.Below(rng.Below(5) == 0 ? 1 << 24 : 3000));
    resident.group = lookahead.GroupOf(i % 5, 10);
    const std::vector<double> alive = Alive(lookahead, resident, {0, 2}, kMaxHorizonSteps);
    for (size_t h = 0; h < alive.size(); ++h) {
      ASSERT_TRUE(alive[h] >= 0 && alive[h] <= 1);
      ASSERT_TRUE(h == 0 || alive[h] <= alive[h - 1] * (1 + 1e-12));
    }
  }
}

// Exactly, at any horizon; until its limit every request is as likely to be there as the model says of its
// age.
TEST(Projection, LoadIsTheSumOverTheResidents) {
  SurvivalLookahead lookahead({});
  Population people(lookahead, 600, 1, 16,
                    [](uint32_t, Rng& rng) { return 1 + static_cast<int64_t>(150 * rng.Gamma(1.5)); });
  people.Run(2000);
  Rng rng(17);
  for (const int32_t horizon : {0, 5, 32, 33, 100, 500}) {
    Crowd crowd = RandomCrowd(rng, 72);
    for (size_t i = 0; i < 72; i += 5)
      crowd.residents[i].max_new_tokens += static_cast<int64_t>(rng.Below(200));
    std::vector<double> load(static_cast<size_t>(horizon) + 1);
    lookahead.Project(crowd.residents, crowd.time, absl::MakeSpan(load));
    double most = 0;
    for (int32_t h = 0; h <= horizon; ++h) {
      double sum = 0;
      for (size_t i = 0; i < crowd.residents.size(); ++i) {
        const Resident& r = crowd.residents[i];
        const double* const known = lookahead.model().Table(0).From(crowd.known[i]);
        if (r.dropped || crowd.plan[i] + h >= r.max_new_tokens) continue;
        const double alive = known[crowd.plan[i] - crowd.known[i] + h] / known[0];
        sum += alive * static_cast<double>(r.prefill_tokens + crowd.plan[i] + h);
      }
      most = std::max(most, sum);
      ASSERT_NEAR(load[static_cast<size_t>(h)], sum, 1e-9 * most) << "h " << h << " of " << horizon;
    }
  }
}

TEST(Projection, AReplayedRequestIsAsOldAsItsTokens) {
  SurvivalLookahead lookahead({});
  Population people(lookahead, 300, 1, 14,
                    [](uint32_t, Rng& rng) { return 1 + static_cast<int64_t>(rng.Below(200)); });
  people.Run(1500);
  const WaitingView fresh = {.prefill_tokens = 10, .max_new_tokens = 1000};
  WaitingView replayed = {.prefill_tokens = 160, .max_new_tokens = 1000, .generated_tokens = 150};
  EXPECT_NE(lookahead.CurveKey(fresh, 30), lookahead.CurveKey(replayed, 30));
  EXPECT_EQ(lookahead.CurveKey(fresh, 30) >> 48, lookahead.CurveKey(replayed, 30) >> 48)
      << "its prompt is the client's, and its class that of such prompts";
  std::vector<double> young(31), old(31);
  lookahead.Curve(fresh, absl::MakeSpan(young));
  lookahead.Curve(replayed, absl::MakeSpan(old));
  EXPECT_NEAR(young[30], 170.0 / 200, 0.04);
  EXPECT_NEAR(old[30], 20.0 / 50, 0.08);
  const std::vector<double> resident = AliveFrom(lookahead, 150, 30);
  for (size_t h = 0; h <= 30; ++h) EXPECT_NEAR(old[h], resident[h], 1e-12);
  replayed.max_new_tokens = 7;
  lookahead.Curve(replayed, absl::MakeSpan(old));
  EXPECT_GT(old[6], 0);
  EXPECT_EQ(old[7], 0);
}

// --- survival table ---

// P(length > age) far beyond the oldest age that was seen.

// E[exp(-hazard * steps)] over the gamma posterior of the hazard, by the midpoint rule.
double Predicted(const SurvivalTable::Tail& tail, double steps) {
  const double shape = tail.endings, scale = tail.hazard / shape;
  constexpr int kParts = 200'000;
  const double most = tail.hazard * (1 + 40 / std::sqrt(shape) + 40 / shape);
  double sum = 0, mass = 0;
  for (int i = 0; i < kParts; ++i) {
    const double hazard = most * (i + 0.5) / kParts;
    const double density =
        std::exp((shape - 1) * std::log(hazard / scale) - hazard / scale - std::lgamma(shape));
    mass += density;
    sum += density * std::exp(-hazard * steps);
  }
  return sum / mass;
}

TEST(SurvivalTable, BeyondItsReachItIsThePredictionOfTheTailsPosterior) {
  for (const double endings : {1.0, 3.0, 12.5, 200.0}) {
    const SurvivalTable::Tail tail{.hazard = 1e-3, .endings = endings};
    SurvivalTable table;
    const std::vector<double> hazards(40, 0.01);
    table.Build(AgeLattice(16), hazards, tail);
    const int64_t oldest = AgeLattice(16).First(40) - 1, reach = oldest + SurvivalTable::kReach;
    const double at_reach = table.SurvivalProbability(0, reach);
    for (const int64_t beyond : {1, 17, 300, 4'000, 50'000, 900'000}) {
      const double p = table.SurvivalProbability(0, reach + beyond) / at_reach;
      EXPECT_GE(p, 0.999 * Predicted(tail, static_cast<double>(beyond))) << endings << " " << beyond;
      EXPECT_LE(p, 1.001 * Predicted(tail, static_cast<double>(beyond) * 7 / 8)) << endings << " " << beyond;
    }
  }
}

TEST(SurvivalTable, NeverRisesAndStaysAProbabilityWhateverTheTail) {
  for (const double hazard : {0.0, 1e-9, 0.3, 1 - 1e-9}) {
    for (const double endings : {1e-3, 1.0, 1e6}) {
      SurvivalTable table;
      table.Build(AgeLattice(16), std::vector<double>(60, 0.02), {.hazard = hazard, .endings = endings});
      for (const int64_t age : {0, 10, 100'000}) {
        double last = 1;
        for (int64_t ahead = 0; ahead < int64_t{1} << 40; ahead = ahead * 3 / 2 + 1) {
          const double p = table.SurvivalProbability(age, ahead);
          ASSERT_TRUE(p >= 0 && p <= last)
              << hazard << " " << endings << " " << age << " " << ahead << " " << p;
          last = p;
        }
      }
    }
  }
}

TEST(Survival, FewEndingsSayLittleOfLengthsFarBeyondThem) {
  const auto far = [](int endings) {
    SurvivalLookahead lookahead({});
    Resident resident = {.group = lookahead.GroupOf(0, 100)};
    for (int i = 0; i < endings; ++i) lookahead.Observe(resident, {}, 0, 1000 + i % 64 * 16, true);
    lookahead.Advance();
    WaitingView view = {.prefill_tokens = 100, .max_new_tokens = 65'536};
    const std::vector<int64_t> steps = {0, 20'000};
    std::vector<double> alive(2);
    lookahead.Lifetime(view, steps, absl::MakeSpan(alive));
    return alive[1];
  };
  EXPECT_GT(far(2), 1e3 * far(64));
  EXPECT_LT(far(64), 1e-4);
  EXPECT_LT(far(4000), 1e-9);
}

// --- counts of hazards ---

// Hazard counts and survival tables against a Kaplan-Meier estimate computed directly from its definition.

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
