// The adaptive token budget: the costs it fits, the budgets it chooses, and that it chooses none without
// enough data.
#include "worker/scheduler/budget_tuner.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/rng.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace bfio::worker {
namespace {

using ::testing::HasSubstr;

BatchLoad RandomLoad(Rng& rng) {
  BatchLoad load;
  for (uint64_t i = rng.Below(60); i > 0; --i) load.AddDecode(static_cast<int64_t>(rng.Below(2000)));
  if (rng.Below(3) == 0) load.AddPrefill(1 + static_cast<int64_t>(rng.Below(450)), 0);
  return load;
}

TEST(BatchFitTest, FindsFloorSlopeKneeAndContextCost) {
  for (const int64_t b0 : {0, 64, 128}) {
    SCOPED_TRACE(b0);
    BatchCost cost;
    cost.b0_tokens = b0;
    cost.k2_s_per_token = 1e-7;
    Rng rng(5);
    BatchFit fit;
    for (int i = 0; i < 1500; ++i) {
      const BatchLoad load = RandomLoad(rng);
      // 2 % of noise, and now and then a batch that takes ten times as long.
      const double disturbed = i % 200 == 199 ? 10 : 1;
      fit.Add(load, cost.Seconds(load) * (1 + 0.02 * rng.Normal()) * disturbed);
    }
    const auto found = fit.cost();
    ASSERT_TRUE(found.has_value());
    EXPECT_EQ(found->b0_tokens, b0);
    for (const int64_t tokens : {1, 60, 300, 500, 1000}) {
      EXPECT_NEAR(found->Seconds(tokens) / cost.Seconds(tokens), 1, 0.06) << tokens;
    }
  }
}

// The true knee is beyond those that are tried, so the constant of the best line is negative.
TEST(BatchFitTest, ALineBelowTheOriginBecomesOneThroughIt) {
  const auto seconds = [](int64_t tokens) {
    return 2e-3 + 5e-5 * static_cast<double>(std::max<int64_t>(0, tokens - 512));
  };
  Rng rng(5);
  BatchFit fit;
  for (int i = 0; i < 1500; ++i) {
    BatchLoad load;
    load.tokens = 520 + static_cast<int64_t>(rng.Below(1529));
    fit.Add(load, seconds(load.tokens));
  }
  const auto found = fit.cost();
  ASSERT_TRUE(found.has_value());
  EXPECT_GE(found->c_s, 0);
  double bias = 0, sum = 0;
  for (int64_t tokens = 520; tokens <= 2048; ++tokens) {
    bias += found->Seconds(tokens) - seconds(tokens);
    sum += seconds(tokens);
  }
  EXPECT_LT(std::abs(bias), 0.1 * sum);
}

// Prompts in chunks, whose attention grows with the tokens computed before.
BatchLoad RandomChunkLoad(Rng& rng, int64_t longest) {
  BatchLoad load = RandomLoad(rng);
  load.AddPrefill(1 + static_cast<int64_t>(rng.Below(500)), static_cast<int64_t>(rng.Below(longest)));
  return load;
}

TEST(BatchFitTest, FindsTheCostOfPromptsAttentionToThemselves) {
  BatchCost cost;
  cost.k1_s_per_pair = 5e-9;
  cost.k2_s_per_token = 1e-7;
  Rng rng(6);
  BatchFit fit;
  for (int i = 0; i < 1500; ++i) {
    const BatchLoad load = RandomChunkLoad(rng, 30'000);
    fit.Add(load, cost.Seconds(load) * (1 + 0.02 * rng.Normal()));
  }
  const auto found = fit.cost();
  ASSERT_TRUE(found.has_value());
  EXPECT_NEAR(found->k1_s_per_pair, 5e-9, 5e-10);
  EXPECT_NEAR(found->a_s_per_token, cost.a_s_per_token, 0.05 * cost.a_s_per_token);
  // A chunk at the end of a prompt of 30,000 tokens takes 75 ms more than one at its beginning.
  BatchLoad late;
  late.AddPrefill(500, 30'000);
  EXPECT_NEAR(found->Seconds(late), cost.Seconds(late), 0.05 * cost.Seconds(late));
}

// Noise must not be fitted as a cost of pairs: a prompt of 30,000 tokens has 4.5e8 of them.
TEST(BatchFitTest, ShortPromptsDetermineNoCostOfPairs) {
  BatchCost cost;
  cost.k2_s_per_token = 1e-7;
  int with = 0;
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    Rng rng(seed);
    BatchFit fit;
    for (int i = 0; i < 300; ++i) {
      const BatchLoad load = RandomChunkLoad(rng, 300);
      fit.Add(load, cost.Seconds(load) * (1 + 0.05 * rng.Normal()));
    }
    ASSERT_TRUE(fit.cost().has_value());
    with += fit.cost()->k1_s_per_pair > 0 ? 1 : 0;
  }
  EXPECT_LE(with, 1);
}

// The more requests, the younger they are. So the number of tokens alone explains little, and its fitted
// slope next to that of the context is as often negative as positive.
TEST(BatchFitTest, WhatTheContextExplainsIsNotTakenForTheTokens) {
  constexpr double kContextCost = 3e-5;
  for (const double slope : {-1e-5, -1e-6, 0.0}) {
    SCOPED_TRACE(slope);
    Rng rng(7);
    BatchFit fit;
    for (int i = 0; i < 1500; ++i) {
      BatchLoad load;
      load.tokens = 20 + static_cast<int64_t>(rng.Below(12));
      load.decode_context = static_cast<double>(load.tokens) * (50 + static_cast<double>(rng.Below(60)));
      const double seconds =
          0.05 + slope * static_cast<double>(load.tokens) + kContextCost * load.decode_context;
      fit.Add(load, seconds * (1 + 0.02 * rng.Normal()));
    }
    const auto found = fit.cost();
    ASSERT_TRUE(found.has_value());
    EXPECT_NEAR(found->k2_s_per_token, kContextCost, 0.1 * kContextCost);
    EXPECT_GT(found->a_s_per_token, 0) << "planners divide by it";
    EXPECT_LT(found->a_s_per_token, 1e-4);
  }
}

TEST(BatchFitTest, UndeterminedCostsAreAbsent) {
  BatchFit fit;
  EXPECT_FALSE(fit.cost().has_value());
  for (int i = 0; i < 1000; ++i) fit.Add({.tokens = 64}, 0.05);
  EXPECT_FALSE(fit.cost().has_value()) << "batches of one size";
  fit.Add({.tokens = 0}, 1);
  fit.Add({.tokens = 5}, std::nan(""));
  fit.Add({.tokens = 5}, -1);
  EXPECT_FALSE(fit.cost().has_value());
}

// An engine with the default costs and a tuner, which serves Poisson arrivals.
class Served {
 public:
  Served(BudgetTunerOptions options, int64_t prefill, int64_t decode, double load)
      : options_(options),
        engine_({.token_budget = options.max_budget}, Sarathi()),
        tuner_(options, Sarathi()),
        prefill_(prefill),
        decode_(decode),
        gap_s_(static_cast<double>(prefill + decode) / (load * BatchCost().Capacity(512))) {}

  static BatchScheduler Sarathi() { return *BatchScheduler::Create("sarathi"); }

  // Serves this many requests. Returns the mean budget over the second half of the batches.
  double Serve(int requests) {
    std::vector<double> budgets;
    EngineModel::Ended ended;
    int arrived = 0;
    while (arrived < requests) {
      for (; next_s_ <= now_s_; next_s_ += gap_s_ * rng_.Exponential(), ++arrived) {
        engine_.Arrive({id_, prefill_, decode_});
        tuner_.Arrive(id_, next_s_, prefill_, BatchCapacity::kUnbounded,
                      id_ % asking_every_ == 0 ? asked_ : RequestObjectives());
        ++id_;
      }
      const auto seconds = engine_.Start();
      if (!seconds) {
        now_s_ = next_s_;
        continue;
      }
      now_s_ += *seconds;
      const BatchLoad load = engine_.load();
      engine_.End(ended);
      tuner_.Batch(load, *seconds);
      for (const int64_t id : ended.completed) tuner_.End(id, decode_);
      engine_.set_token_budget(tuner_.UpdateBudget(engine_.prompt_tokens()));
      EXPECT_GE(tuner_.budget(), options_.min_budget);
      EXPECT_LE(tuner_.budget(), options_.max_budget);
      budgets.push_back(static_cast<double>(tuner_.budget()));
    }
    double sum = 0;
    for (size_t i = budgets.size() / 2; i < budgets.size(); ++i) sum += budgets[i];
    return sum / static_cast<double>(budgets.size() - budgets.size() / 2);
  }
  // Every `every`-th request has these objectives of its own.
  void SetObjectives(const RequestObjectives& objectives, int64_t every = 1) {
    asked_ = objectives;
    asking_every_ = every;
  }
  BudgetTuner& tuner() { return tuner_; }
  int64_t left() const { return engine_.tokens(); }

 private:
  const BudgetTunerOptions options_;
  EngineModel engine_;
  BudgetTuner tuner_;
  const int64_t prefill_, decode_;
  const double gap_s_;
  Rng rng_{3};
  double now_s_ = 0, next_s_ = 0;
  int64_t id_ = 0, asking_every_ = 1;
  RequestObjectives asked_;
};

BudgetTunerOptions For(BudgetGoal goal) {
  BudgetTunerOptions options;
  options.goal = goal;
  options.window = 256;
  return options;
}

TEST(BudgetTunerTest, SmallForTpotLargeForTtft) {
  Served tpot(For(BudgetGoal::kTpot), 1000, 200, 0.4), ttft(For(BudgetGoal::kTtft), 1000, 200, 0.4);
  EXPECT_LT(tpot.Serve(1500), 400);
  EXPECT_GE(ttft.Serve(1500), 1000) << "a prompt in a step";
  EXPECT_GT(tpot.tuner().rounds(), 3);
}

TEST(BudgetTunerTest, AnUnstableBudgetIsNotChosen) {
  // At 90 % of the capacity of budget 512, a budget of 128 is far too small, however smooth its decodes are.
  Served served(For(BudgetGoal::kTpot), 1000, 200, 0.9);
  EXPECT_GT(served.Serve(2500), 450);
  EXPECT_LT(served.left(), 200'000);
}

TEST(BudgetTunerTest, ObjectivesAreMetByTheLargestBudgetThatMeetsThem) {
  // A full batch of 512 takes 180 ms. An objective on TPOT needs smaller budgets, one on TTFT larger ones.
  BudgetTunerOptions options = For(BudgetGoal::kObjectives);
  options.tpot_objective_s = 0.075;
  Served smooth(options, 1000, 200, 0.4);
  EXPECT_LT(smooth.Serve(1500), 700);
  options.tpot_objective_s = 0;
  options.ttft_objective_s = 0.5;
  Served quick(options, 1000, 200, 0.4);
  EXPECT_GT(quick.Serve(1500), 1000);
}

TEST(BudgetTunerTest, AReplayedBatchIsNoShorterThanTheOtherRanks) {
  EngineModel engine({.token_budget = 512, .least_s = 5}, Served::Sarathi());
  engine.Arrive({1, 100, 10});
  EXPECT_EQ(engine.Start(), 5);
}

TEST(BudgetTunerTest, EachRequestHasItsOwnObjectives) {
  const BudgetTunerOptions options = For(BudgetGoal::kObjectives);
  Served all(options, 1000, 200, 0.4), some(options, 1000, 200, 0.4), none(options, 1000, 200, 0.4);
  all.SetObjectives({.tpot_s = 0.075});
  some.SetObjectives({.tpot_s = 0.075}, 4);
  EXPECT_LT(all.Serve(1500), 700);
  EXPECT_LT(some.Serve(1500), 700) << "the others have none";
  const double without = none.Serve(1500);
  // A request's objectives replace the engine's: here every budget meets them.
  BudgetTunerOptions strict = options;
  strict.tpot_objective_s = 0.075;
  Served content(strict, 1000, 200, 0.4), late(options, 1000, 200, 0.4);
  content.SetObjectives({.tpot_s = 100});
  EXPECT_EQ(content.Serve(1500), without);
  // A TTFT objective that had passed before the request arrived cannot be met by any budget.
  late.SetObjectives({.ttft_s = -1});
  EXPECT_EQ(late.Serve(1500), without);
}

TEST(BudgetTunerTest, NoBudgetIsChosenWithoutEnoughData) {
  BudgetTuner tuner(For(BudgetGoal::kTpot), Served::Sarathi());
  Rng rng(1);
  for (int i = 0; i < 500; ++i) {
    tuner.Arrive(i, i, 100, 10);
    if (i < 20) tuner.End(i, 10);
    const BatchLoad load = RandomLoad(rng);
    tuner.Batch(load, BatchCost().Seconds(load));
    EXPECT_EQ(tuner.UpdateBudget(0), 2048) << "too few have ended";
  }
  EXPECT_EQ(tuner.rounds(), 0);
  tuner.End(12345, 1);  // an unknown request
  EXPECT_EQ(tuner.UpdateBudget(0), 2048);
}

TEST(BudgetTunerTest, OnlyRequestsInTheWindowCountAsEnded) {
  BudgetTunerOptions options = For(BudgetGoal::kTpot);
  options.window = 64;
  options.batches_per_turn = 1'000'000;
  for (const bool ends : {false, true}) {
    BudgetTuner tuner(options, Served::Sarathi());
    Rng rng(1);
    for (int i = 0; i < 500; ++i) {
      const BatchLoad load = RandomLoad(rng);
      tuner.Batch(load, BatchCost().Seconds(load));
    }
    for (int i = 0; i < 40 + 64; ++i) {
      tuner.Arrive(i, i, 100, 10);
      if (i < 41 || ends) tuner.End(i, 10);
    }
    tuner.UpdateBudget(0);
    EXPECT_EQ(tuner.rounds() > 0, ends) << "one of the 64 has ended, or all have";
  }
}

TEST(BudgetTunerTest, ATurnReplaysAtMostItsLimit) {
  BudgetTunerOptions options = For(BudgetGoal::kE2e);
  options.batches_per_turn = 1;
  Served served(options, 1000, 200, 0.4);
  served.Serve(300);
  EXPECT_EQ(served.tuner().rounds(), 0) << "a replay of hundreds of requests takes thousands of batches";
}

// Median end-to-end time, in seconds, of 1,800 requests with long-tailed lengths: under a fixed budget, or of
// the tuner's from `budget` down. `others`: counts the steps with another budget.
double MedianEndToEnd(uint64_t seed, int64_t budget, bool adapts, int64_t& others) {
  EngineModelOptions options;
  options.token_budget = budget;
  options.slots = 64;
  options.cost = {.c_s = 1e-3, .a_s_per_token = 1e-5, .b0_tokens = 0};
  EngineModel engine(options, Served::Sarathi());
  BudgetTuner tuner({.max_budget = budget, .slots = 64}, Served::Sarathi());
  Rng rng(seed);
  std::vector<double> arrived, took;
  std::vector<int64_t> decodes;
  double now = 0, next = 0;
  EngineModel::Ended ended;
  while (took.size() < 1800) {
    for (; next <= now && arrived.size() < 1800; next += rng.Exponential() / 30) {
      const auto id = static_cast<int64_t>(arrived.size());
      const auto prefill = static_cast<int64_t>(std::min(7e3, 1 + std::exp(7.3 + 0.9 * rng.Normal())));
      const auto decode = static_cast<int64_t>(std::min(4e2, 1 + std::exp(3.0 + 0.9 * rng.Normal())));
      engine.Arrive({id, prefill, decode});
      tuner.Arrive(id, next, prefill, decode);
      arrived.push_back(next);
      decodes.push_back(decode);
    }
    const auto seconds = engine.Start();
    if (!seconds) {
      now = next;
      continue;
    }
    now += *seconds;
    const BatchLoad load = engine.load();
    engine.End(ended);
    for (const int64_t id : ended.completed) {
      took.push_back(now - arrived[static_cast<size_t>(id)]);
      tuner.End(id, decodes[static_cast<size_t>(id)]);
    }
    if (!adapts) continue;
    tuner.Batch(load, *seconds);
    engine.set_token_budget(tuner.UpdateBudget(engine.prompt_tokens()));
    others += tuner.budget() != budget;
  }
  std::nth_element(took.begin(), took.begin() + 900, took.end());
  return took[900];
}

// The first comparison is of some dozens of requests, and at times another budget is best for these. That
// must not outweigh the comparisons of hundreds of requests that follow.
TEST(BudgetTunerTest, WhatFewRequestsSuggestIsNotKept) {
  int64_t others = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const double adaptive = MedianEndToEnd(seed, 1024, true, others);
    double best = MedianEndToEnd(seed, 1024, false, others);
    for (const int64_t budget : {512, 768})
      best = std::min(best, MedianEndToEnd(seed, budget, false, others));
    EXPECT_LE(adaptive, 1.03 * best) << "seed " << seed;
  }
  EXPECT_GT(others, 100) << "nothing was put to the test";
}

TEST(BudgetTunerTest, Names) {
  EXPECT_EQ(ParseBudgetGoal("ttft").value(), BudgetGoal::kTtft);
  EXPECT_THAT(std::string(ParseBudgetGoal("speed").status().message()), HasSubstr("unknown goal 'speed'"));
}

}  // namespace
}  // namespace bfio::worker
