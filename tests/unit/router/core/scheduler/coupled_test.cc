// Ranks that meet in a barrier inside their engines: the group counts their common steps, and releases
// prompts in waves over the ranks.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "common/base/rng.h"
#include "common/cost/prompt_work.h"
#include "tests/testing/one_group.h"

namespace bfio::core::coupled_test {

using bfio::testing::OneGroup;

constexpr int64_t kBudget = 512;
constexpr BatchCost kCost = {.c_s = 10e-3, .a_s_per_token = 50e-6, .b0_tokens = 0, .k2_s_per_token = 1e-8};

// Engines that compute their requests oldest first, decodes before prompts. A request that is sent during a
// step enters with the next one.
class Engines {
 public:
  // `metered`: the engines limit their prompts to the plan's level.
  Engines(GroupKind kind, int ranks, int32_t slots = 64, bool metered = false)
      : metered_(metered), ranks_(static_cast<size_t>(ranks)) {
    scheduler = std::make_unique<OneGroup>(SchedulerOptions(), *MakePolicy("bf_io_auto", {}), nullptr, kind);
    std::vector<EpochMember> members(ranks_.size());
    for (EpochMember& member : members) {
      member.spec = {slots, 100'000'000, true};
      member.spec.cost = kCost;
      member.spec.prefix_cache = true;
      member.spec.member = static_cast<uint64_t>(&member - members.data()) + 1;
    }
    scheduler->OpenEpoch(members);
  }

  void Enqueue(RequestId id, int64_t prompt, int64_t output, PrefixBlocks prefix = nullptr) {
    RequestSpec spec = {.id = id, .prefill_tokens = prompt, .max_new_tokens = output};
    spec.prefix = std::move(prefix);
    ASSERT_TRUE(scheduler->Enqueue(spec).ok());
    requests_.push_back({id, prompt, output});
    ++in_system;
    Send();
  }

  // Runs a step of all ranks, then delivers their reports and what the scheduler sends in response.
  void Step() {
    double longest_s = 0;
    bool prompts = false;
    std::vector<std::pair<WorkerIndex, StepReport>> reports;
    std::vector<std::vector<RequestId>> finished(ranks_.size());
    for (size_t g = 0; g < ranks_.size(); ++g) {
      Rank& rank = ranks_[g];
      if (rank.runs.empty()) continue;
      StepReport report = {.step = ++rank.step, .applied_plan = rank.plan};
      report.prefill.emplace().token_budget = kBudget;
      report.prefill->metered = metered_;
      BatchLoad batch;
      for (const Run& run : rank.runs) {
        if (run.left == 0) batch.AddDecode(run.prompt + run.made);
      }
      int64_t budget = kBudget - batch.tokens;
      if (rank.level_s) {
        std::vector<PromptLeft> left;
        for (const Run& run : rank.runs) {
          if (run.left > 0) left.push_back({run.left, run.prompt - run.left});
        }
        budget =
            std::min(budget, TokensWithin({kCost, batch.tokens, batch.decode_context, left}, *rank.level_s));
      }
      for (Run& run : rank.runs) {
        report.load_tokens += run.prompt + run.made;
        if (run.left > 0) {
          const int64_t chunk = run.entered ? std::min(run.left, budget) : 0;
          batch.AddPrefill(chunk, run.prompt - run.left);
          budget -= chunk;
          run.left -= chunk;
          prompts = prompts || chunk > 0;
          run.entered = true;
          if (run.left > 0) {
            report.prefill->prompts.push_back({run.id, run.left});
            continue;
          }
        }
        if (++run.made == run.output) finished[g].push_back(run.id);
      }
      std::erase_if(rank.runs, [](const Run& run) { return run.made == run.output; });
      report.group_idle = rank.runs.empty();
      report.finished = finished[g];
      longest_s = std::max(longest_s, kCost.Seconds(batch));
      ended += std::ssize(finished[g]);
      in_system -= std::ssize(finished[g]);
      reports.push_back({static_cast<WorkerIndex>(g), report});
    }
    seconds += longest_s;
    waited_s += longest_s * static_cast<double>(in_system);
    slowest_s = std::max(slowest_s, longest_s);
    prompt_steps += prompts ? 1 : 0;
    for (const auto& [g, report] : reports) {
      EXPECT_TRUE(scheduler->OnReport(g, report).ok());
      Send();
    }
  }
  // Fills every rank with `each` decoding requests.
  void Fill(int64_t each) {
    for (int64_t i = 0; i < each * std::ssize(ranks_); ++i)
      Enqueue(1'000'000 + static_cast<RequestId>(i), 100, 100'000);
    for (int i = 0; i < 200; ++i) Step();
    ASSERT_EQ(scheduler->waiting(), 0);
    seconds = waited_s = slowest_s = 0;
    prompt_steps = 0;
  }
  int64_t Prompts(size_t rank) const {
    return std::count_if(ranks_[rank].runs.begin(), ranks_[rank].runs.end(),
                         [](const Run& run) { return run.left > 0; });
  }

  std::unique_ptr<OneGroup> scheduler;
  // Total duration of all steps; number of steps in which some rank computed prompt tokens; ended requests.
  double seconds = 0;
  int64_t prompt_steps = 0, ended = 0;
  // Requests that have arrived and not ended; the total time that requests have spent so; the longest step.
  int64_t in_system = 0;
  double waited_s = 0, slowest_s = 0;
  // Number of plans without placements that carry a level.
  int64_t plans_with_level = 0;

 private:
  struct Run {
    RequestId id;
    int64_t prompt, output, left = 0, made = 0;
    bool entered = false;
  };
  struct Rank {
    std::vector<Run> runs;
    int64_t step = 0, plan = 0;
    std::optional<double> level_s;
  };

  void Send() {
    while (const auto plan = scheduler->MakePlan()) {
      plans_with_level += plan->level_s && plan->placements.empty() ? 1 : 0;
      for (const Placement& placement : plan->placements) {
        const auto it = std::find_if(requests_.begin(), requests_.end(),
                                     [&](const Run& run) { return run.id == placement.id; });
        it->left = it->prompt;
        ranks_[static_cast<size_t>(placement.worker)].runs.push_back(*it);
        requests_.erase(it);
      }
      for (size_t g = 0; g < ranks_.size(); ++g) {
        if (plan->apply_steps[g] > 0 && metered_) ranks_[g].level_s = plan->level_s;
        ranks_[g].plan = std::max(ranks_[g].plan, plan->apply_steps[g]);
      }
    }
  }

  const bool metered_;
  std::vector<Rank> ranks_;
  // Requests not placed yet.
  std::vector<Run> requests_;
};

TEST(Coupled, AStepHasEndedWhenEveryRankWithRequestsHasReported) {
  Engines engines(GroupKind::kCoupled, 4);
  engines.Enqueue(1, 10, 1'000);
  engines.Enqueue(2, 10, 1'000);
  for (int i = 0; i < 3; ++i) engines.Step();
  const int64_t before = engines.scheduler->reported_step(), now = engines.scheduler->NextStep();
  for (int i = 0; i < 100; ++i) engines.Step();
  EXPECT_EQ(engines.scheduler->reported_step() - before, 100) << "two of four ranks have requests";
  EXPECT_EQ(engines.scheduler->NextStep() - now, 100) << "ages are counted in the same steps";
}

TEST(Coupled, PromptsAreReleasedInWaves) {
  const auto run = [](GroupKind kind) {
    Engines engines(kind, 4);
    engines.Fill(16);
    Rng rng(5);
    for (RequestId id = 1; id <= 200; ++id) {
      engines.Enqueue(id, 200 + static_cast<int64_t>(rng.Below(600)), 40);
      for (uint64_t steps = rng.Below(11); steps > 0; --steps) engines.Step();
    }
    for (int i = 0; i < 4'000 && engines.ended < 200; ++i) engines.Step();
    EXPECT_EQ(engines.ended, 200);
    return std::pair(engines.prompt_steps, engines.seconds);
  };
  const auto [waves, coupled_s] = run(GroupKind::kCoupled);
  const auto [alone, independent_s] = run(GroupKind::kIndependent);
  EXPECT_LT(static_cast<double>(waves), 0.75 * static_cast<double>(alone));
  EXPECT_LT(coupled_s, independent_s);
}

// For engines that report their steps, the plan sets what they compute, not only what is sent to them.
TEST(Coupled, MeteredEnginesKeepStepsShortWithoutDelayingRequests) {
  const auto run = [](uint64_t seed, bool metered) {
    Engines engines(GroupKind::kCoupled, 4, 64, metered);
    engines.Fill(16);
    Rng rng(seed);
    for (RequestId id = 1; id <= 400; ++id) {
      engines.Enqueue(id, 200 + static_cast<int64_t>(rng.Below(600)), 40);
      for (uint64_t steps = rng.Below(11); steps > 0; --steps) engines.Step();
    }
    for (int i = 0; i < 4'000 && engines.ended < 400; ++i) engines.Step();
    EXPECT_EQ(engines.ended, 400);
    return std::pair(engines.waited_s, engines.slowest_s);
  };
  for (const uint64_t seed : {1, 2, 3, 4, 5}) {
    SCOPED_TRACE(seed);
    const auto [in_waves_s, slowest_wave_s] = run(seed, false);
    const auto [metered_s, slowest_metered_s] = run(seed, true);
    // Measured ratios: up to 1.028, and 0.38 to 0.40.
    EXPECT_LT(metered_s, 1.04 * in_waves_s);
    EXPECT_LT(slowest_metered_s, 0.6 * slowest_wave_s);
  }
}

TEST(Coupled, ALevelComesOncePerStepAndGoesWithTheLastPrompt) {
  Engines engines(GroupKind::kCoupled, 2, 64, true);
  engines.Fill(16);
  engines.Enqueue(1, 3'000, 5);
  engines.Enqueue(2, 3'000, 5);
  EXPECT_EQ(engines.scheduler->MakePlan(), std::nullopt);
  int64_t with_level = 0;
  for (int i = 0; i < 400 && engines.ended < 2; ++i) {
    const int64_t before = engines.plans_with_level;
    engines.Step();
    ASSERT_LE(engines.plans_with_level - before, 1);
    with_level += engines.plans_with_level - before;
  }
  EXPECT_EQ(engines.ended, 2);
  EXPECT_GT(with_level, 5);
  const int64_t then = engines.plans_with_level;
  for (int i = 0; i < 50; ++i) engines.Step();
  EXPECT_EQ(engines.plans_with_level, then);
}

TEST(Coupled, NothingDecodesAndPromptsGoAtOnce) {
  Engines engines(GroupKind::kCoupled, 2);
  engines.Enqueue(1, 3'000, 5);
  engines.Enqueue(2, 100, 5);
  EXPECT_EQ(engines.scheduler->waiting(), 0);
}

// The height of 1,000 tokens times 64 decodes is 3.2 s, which is 320 steps of the minimum duration.
TEST(Coupled, ALonePromptIsReleasedAfterWhatItCostsTheDecodes) {
  Engines engines(GroupKind::kCoupled, 4);
  engines.Fill(16);
  engines.Enqueue(1, 1'000, 5);
  EXPECT_EQ(engines.scheduler->waiting(), 1) << "it would hold up 64 decodes";
  int steps = 0;
  for (; steps < 400 && engines.scheduler->waiting() > 0; ++steps) engines.Step();
  EXPECT_EQ(engines.scheduler->waiting(), 0);
  EXPECT_GT(steps, 10);
}

TEST(Coupled, APromptThatIsMostlyCachedLeavesItsRankRoomForTheNext) {
  Engines engines(GroupKind::kCoupled, 2);
  const auto text = std::make_shared<const std::vector<uint64_t>>(std::vector<uint64_t>{1, 2, 3, 4, 5, 6, 7});
  engines.Fill(1);
  engines.Enqueue(1, 500, 5, text);
  for (int i = 0; i < 20; ++i) engines.Step();
  ASSERT_EQ(engines.ended, 1);
  // Without the cache the second one would fill a step of the rank.
  for (RequestId id = 2; id <= 5; ++id) engines.Enqueue(id, 500, 5, text);
  EXPECT_EQ(engines.scheduler->waiting(), 0);
  EXPECT_EQ(std::max(engines.Prompts(0), engines.Prompts(1)), 4);
}

// These engines report the prompt tokens left as if nothing had been cached.
TEST(Coupled, TokensLeftOfACachedPromptExcludeTheCachedOnes) {
  Engines engines(GroupKind::kCoupled, 2);
  std::vector<uint64_t> blocks(28);
  for (size_t i = 0; i < blocks.size(); ++i) blocks[i] = i + 1;
  const auto text = std::make_shared<const std::vector<uint64_t>>(blocks);
  engines.Fill(1);
  engines.Enqueue(1, 1'850, 5, text);
  for (int i = 0; i < 20; ++i) engines.Step();
  ASSERT_EQ(engines.ended, 1);
  engines.Enqueue(2, 1'850, 5, text);
  engines.Step();
  engines.Enqueue(3, 1'850, 5, text);
  EXPECT_EQ(engines.scheduler->waiting(), 0);
  EXPECT_EQ(std::max(engines.Prompts(0), engines.Prompts(1)), 2);
}

TEST(Coupled, ARankGetsNoMorePromptsThanItsNextStepsCompute) {
  Engines engines(GroupKind::kCoupled, 2);
  engines.Fill(4);
  for (RequestId id = 1; id <= 30; ++id) engines.Enqueue(id, 1'500, 20);
  for (int i = 0; i < 400; ++i) {
    for (const size_t rank : {0, 1}) ASSERT_LE(engines.Prompts(rank), 2);
    engines.Step();
  }
  EXPECT_EQ(engines.ended, 30);
}

}  // namespace bfio::core::coupled_test
