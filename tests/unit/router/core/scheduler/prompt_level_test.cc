// Groups whose ranks compute prompts in chunks and have reported the cost of their batches: where and when
// prompts are placed, and up to which level they are computed.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "common/base/rng.h"
#include "router/core/policy/metered/metered.h"
#include "tests/unit/router/core/scheduler/chunk_group.h"

namespace bfio::core {
namespace {

using bfio::testing::ChunkGroup;
using bfio::testing::Request;

constexpr BatchCost kCost = {.c_s = 10e-3, .a_s_per_token = 20e-6, .b0_tokens = 8, .k2_s_per_token = 1e-8};

class LevelGroup : public ChunkGroup {
 public:
  explicit LevelGroup(size_t ranks, PlanMode mode = PlanMode::kLockstep, const char* policy = "bf_io_auto",
                      int32_t slots = 16, bool told = true, int64_t kv_tokens = 1'000'000)
      : LevelGroup(ranks, mode, *MakePolicy(policy, {}), slots, told, kv_tokens) {}
  LevelGroup(size_t ranks, PlanMode mode, std::unique_ptr<Policy> policy, int32_t slots, bool told,
             int64_t kv_tokens)
      : ChunkGroup(std::vector(ranks, WorkerSpec{.slots = slots,
                                                 .kv_tokens = kv_tokens,
                                                 .cost = told ? std::optional(kCost) : std::nullopt}),
                   std::move(policy), kCost, {.plan_mode = mode}) {}

  void Enqueue(RequestId id, int64_t prompt, int64_t output = 50,
               std::optional<double> ttft_objective_s = std::nullopt, int64_t computed = 0) {
    RequestSpec spec = Request(id, prompt, output);
    spec.computed_tokens = computed;
    spec.ttft_objective_s = ttft_objective_s;
    ChunkGroup::Enqueue(spec);
  }
  // Fills all ranks with `each` decoding requests of 100 tokens.
  void Fill(int64_t each) {
    const int64_t all = each * std::ssize(workers);
    for (int64_t i = 0; i < all; ++i) Enqueue(1'000'000 + static_cast<RequestId>(i), 100, 100'000);
    for (int i = 0; i < 400 && group.placed() < all; ++i) Step();
    Step(100);
    for (size_t g = 0; g < workers.size(); ++g) ASSERT_EQ(Pending(g), 0);
  }
  // The level in force in the last step.
  std::optional<double> level() const { return workers[0].level_s; }
  int64_t Computed() const { return std::accumulate(computed.begin(), computed.end(), int64_t{0}); }
};

TEST(PromptLevel, WithoutTheRanksCostOrUnderABaselineThereIsNoLevel) {
  for (const char* policy : {"bf_io_auto", "vllm"}) {
    LevelGroup group(2, PlanMode::kLockstep, policy, 16, /*told=*/policy != std::string("bf_io_auto"));
    group.Fill(4);
    for (RequestId id = 1; id <= 6; ++id) group.Enqueue(id, 1500);
    group.Step();
    EXPECT_EQ(group.group.waiting(), 0);
    EXPECT_EQ(group.level(), std::nullopt);
  }
}

// Records the prompts in the snapshots of the policy that it wraps.
class Watching final : public Policy {
 public:
  explicit Watching(std::vector<PrefillView>* seen) : seen_(seen) {}
  absl::string_view name() const override { return "watching"; }
  bool meters_prompts() const override { return true; }
  void Decide(const Snapshot& snapshot, Decision& decision) override {
    if (snapshot.prefill != nullptr) seen_->push_back(*snapshot.prefill);
    asked_->Decide(snapshot, decision);
  }

 private:
  const std::unique_ptr<Policy> asked_ = *MakePolicy("bf_io_auto", {});
  std::vector<PrefillView>* const seen_;
};

// Prompts that are on their way count too, at the level of each step before the plan's.
TEST(PromptLevel, APlanCountsWhatRanksComputeBeforeItsStep) {
  for (const PlanMode mode : {PlanMode::kLockstep, PlanMode::kPipelined}) {
    std::vector<PrefillView> seen;
    LevelGroup group(3, mode, std::make_unique<Watching>(&seen), 64, true, 1'000'000);
    group.Fill(4);
    seen.clear();
    const int32_t lag = mode == PlanMode::kPipelined ? 1 : 0;
    // The snapshots' view, and the ranks' prompt tokens and decodes, by the step that they describe.
    std::map<int, PrefillView> shown;
    std::map<int, std::vector<std::pair<int64_t, int64_t>>> ranks;
    RequestId next = 1;
    for (int step = 0; step < 200; ++step) {
      // With disaggregated prefill, only the last token of a prompt is computed here.
      const int64_t prompt = 40 + 37 * (step % 17);
      if (step % 5 == 0)
        group.Enqueue(next++, prompt, 100'000, std::nullopt, step % 20 == 0 ? prompt - 1 : 0);
      for (const size_t g : {0, 1, 2}) ranks[step].emplace_back(group.Pending(g), group.Decodes(g));
      group.Step();
      if (!seen.empty()) shown[step + lag] = seen.back();
      seen.clear();
    }
    int under_way = 0;
    for (const auto& [step, view] : shown) {
      if (!ranks.contains(step)) continue;
      EXPECT_EQ(view.traffic.lag_steps, lag);
      for (size_t g = 0; g < 3; ++g) {
        int64_t pending = 0;
        for (const PromptLeft& prompt : view.ranks[g].prompts) pending += prompt.left;
        under_way += pending > 0 ? 1 : 0;
        EXPECT_EQ(std::pair(pending, view.ranks[g].decodes), ranks[step][g])
            << "step " << step << ", rank " << g << ", lag " << lag;
      }
      if (::testing::Test::HasFailure()) return;
    }
    EXPECT_GT(under_way, 20);
  }
}

// Through pool, placement and reports: the ranks compute a prompt of 4,000 tokens next to their decodes. With
// an objective it is computed in time, and the remaining time counts from its arrival.
TEST(PromptLevel, AnObjectiveForTheFirstTokenShortensThePace) {
  for (const PlanMode mode : {PlanMode::kLockstep, PlanMode::kPipelined}) {
    for (const bool objective : {false, true}) {
      std::vector<PrefillView> seen;
      LevelGroup group(2, mode, std::make_unique<Watching>(&seen), 64, true, 10'000'000);
      group.Fill(12);
      group.Enqueue(1, 4000, 50, objective ? std::optional(0.5) : std::nullopt);
      double seconds = 0, longest_s = 0;
      int64_t left = 4000;
      for (int step = 0; step < 1000 && left > 0; ++step) {
        seen.clear();
        group.Step();
        left -= group.Computed();
        const double step_s = *std::max_element(group.seconds.begin(), group.seconds.end());
        seconds += step_s;
        longest_s = std::max(longest_s, step_s);
        if (seen.empty()) continue;
        for (const PrefillRank& rank : seen.back().ranks) {
          ASSERT_EQ(rank.due_s.size(), rank.prompts.size());
          if (rank.due_s.empty()) continue;
          // Ages are counted in steps of the mean duration.
          const double error = 0.03 + 0.2 * seconds;
          EXPECT_TRUE(objective ? std::abs(rank.due_s[0] + seconds - 0.5) <= error
                                : rank.due_s[0] == kNoObjective)
              << rank.due_s[0] << " at " << seconds;
        }
      }
      ASSERT_EQ(left, 0);
      // The last step may end later than the objective by the error of ages.
      EXPECT_TRUE(objective ? seconds <= 0.5 + longest_s : seconds > 0.5) << seconds;
    }
  }
}

TEST(PromptReports, InconsistentReportsAreRefused) {
  LevelGroup group(1);
  StepReport report = {.step = 1};
  report.prefill.emplace().token_budget = -1;
  EXPECT_EQ(group.group.OnReport(0, report).code(), absl::StatusCode::kInvalidArgument);
  report.prefill = {512, {{1, 0}}};
  EXPECT_EQ(group.group.OnReport(0, report).code(), absl::StatusCode::kInvalidArgument);
}

// Random traffic: no request starves, no rank with decodes exceeds both the level and its decode time, no
// rank has more prompts than it can use, and the accounts are exact.
void RunTraffic(PlanMode mode, int32_t slots, uint64_t seed) {
  SCOPED_TRACE(seed);
  Rng rng(seed);
  LevelGroup group(4, mode, "bf_io_auto", slots);
  RequestId next = 1;
  int64_t levels = 0;
  for (int64_t step = 1; step <= 400 || group.group.placed() + group.group.waiting() > 0; ++step) {
    ASSERT_LT(step, 8000) << "a prompt starves";
    if (step <= 400 && rng.Below(3) == 0) {
      group.Enqueue(next++, 1 + static_cast<int64_t>(rng.Below(1500)),
                    1 + static_cast<int64_t>(rng.Below(80)));
    }
    std::vector<double> alone;
    for (const size_t g : {0, 1, 2, 3}) alone.push_back(group.SecondsWithoutPrompts(g));
    group.Step();
    if (!group.level()) continue;
    ++levels;
    for (size_t g = 0; g < alone.size(); ++g) {
      EXPECT_LE(group.seconds[g], std::max(alone[g], *group.level()) + 1e-9);
    }
  }
  EXPECT_GT(levels, 100);
  EXPECT_EQ(group.totals().drift_tokens, 0);
  EXPECT_EQ(group.totals().policy_violations, 0);
}

TEST(PromptLevelProperty, TrafficIsServedWithinTheLevel) {
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    RunTraffic(PlanMode::kLockstep, 16, seed);
    RunTraffic(PlanMode::kPipelined, 16, seed);
    RunTraffic(PlanMode::kPipelined, 4, seed);
    if (::testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace bfio::core
