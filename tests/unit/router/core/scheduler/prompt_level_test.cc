// Groups whose ranks compute prompts in chunks and have reported the cost of their batches: where and when
// prompts are placed, and up to which level they are computed.
#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "common/base/rng.h"
#include "common/cost/prompt_work.h"
#include "router/core/policy/metered/metered.h"
#include "router/core/scheduler/prefill_forecast.h"
#include "tests/testing/one_group.h"

namespace bfio::core {
namespace {

using bfio::testing::OneGroup;

constexpr BatchCost kCost = {.c_s = 10e-3, .a_s_per_token = 20e-6, .b0_tokens = 8, .k2_s_per_token = 1e-8};

RequestSpec PromptOf(RequestId id, int64_t prefill, int64_t output = 50) {
  return {.id = id, .prefill_tokens = prefill, .max_new_tokens = output};
}

// Ranks that compute prompts in chunks, oldest first, up to the level and within a budget, as workers do
// (worker/scheduler/batch_planner.h).
class ChunkRank {
 public:
  static constexpr int64_t kBudget = 512;

  struct Lengths {
    int64_t prompt = 0, computed = 0, output = 0;
  };
  void Start(RequestId id, const Lengths& lengths) {
    runs_.push_back({id, lengths.prompt, lengths.prompt - lengths.computed, lengths.output, 0});
  }
  int64_t pending() const {
    int64_t pending = 0;
    for (const Run& run : runs_) pending += run.left;
    return pending;
  }
  int64_t decodes() const {
    return std::count_if(runs_.begin(), runs_.end(), [](const Run& run) { return run.left == 0; });
  }
  double SecondsWithoutPrompts() const { return Work({}).SecondsWithoutPrompts(); }

  struct Report {
    StepReport report;
    std::vector<RequestId> finished;
    int64_t computed = 0;
    double seconds = 0;
  };
  Report Step(int64_t step, std::optional<double> level_s) {
    std::vector<PromptLeft> prompts;
    for (const Run& run : runs_) {
      if (run.left > 0) prompts.push_back({run.left, run.prompt - run.left});
    }
    const RankWork work = Work(prompts);
    int64_t capacity = std::max<int64_t>(16, kBudget - work.decodes);
    if (level_s) capacity = std::min(capacity, TokensWithin(work, *level_s));
    Report out;
    out.report.step = out.report.applied_plan = step;
    PrefillReport& prefill = out.report.prefill.emplace();
    prefill.token_budget = kBudget;
    BatchLoad load{.tokens = work.decodes, .decode_context = work.decode_context};
    for (Run& run : runs_) {
      out.report.load_tokens += run.prompt + run.made;
      const int64_t rows = std::min(run.left, capacity);
      load.AddPrefill(rows, run.prompt - run.left);
      capacity -= rows;
      out.computed += rows;
      run.left -= rows;
      if (run.left > 0) {
        prefill.prompts.push_back({run.id, run.left});
      } else if (++run.made == run.output) {
        out.finished.push_back(run.id);
      }
    }
    std::erase_if(runs_, [](const Run& run) { return run.made == run.output; });
    out.seconds = kCost.Seconds(load);
    return out;
  }
  bool idle() const { return runs_.empty(); }

 private:
  struct Run {
    RequestId id;
    int64_t prompt, left, output, made;
  };
  RankWork Work(absl::Span<const PromptLeft> prompts) const {
    RankWork work{kCost, 0, 0, prompts};
    for (const Run& run : runs_) {
      if (run.left > 0) continue;
      ++work.decodes;
      work.decode_context += static_cast<double>(run.prompt + run.made);
    }
    return work;
  }
  std::vector<Run> runs_;
};

// A group of such ranks and its scheduler, run step by step.
class LevelGroup {
 public:
  explicit LevelGroup(int32_t ranks, PlanMode mode = PlanMode::kLockstep, const char* policy = "bf_io_auto",
                      int32_t slots = 16, bool told = true, int64_t kv_tokens = 1'000'000)
      : LevelGroup(ranks, mode, *MakePolicy(policy, {}), slots, told, kv_tokens) {}
  LevelGroup(int32_t ranks, PlanMode mode, std::unique_ptr<Policy> policy, int32_t slots, bool told,
             int64_t kv_tokens)
      : ranks_(static_cast<size_t>(ranks)) {
    SchedulerOptions options = {.plan_mode = mode};
    scheduler = std::make_unique<OneGroup>(options, std::move(policy));
    std::vector<EpochMember> members(static_cast<size_t>(ranks));
    for (EpochMember& member : members) {
      member.spec = {slots, kv_tokens, true};
      if (told) member.spec.cost = kCost;
    }
    scheduler->OpenEpoch(members);
  }

  void Enqueue(RequestId id, int64_t prompt, int64_t output = 50, int32_t priority = 0,
               std::optional<double> ttft_objective_s = std::nullopt, int64_t computed = 0) {
    RequestSpec spec = PromptOf(id, prompt, output);
    spec.computed_tokens = computed;
    spec.priority = priority;
    spec.ttft_objective_s = ttft_objective_s;
    ASSERT_TRUE(scheduler->Enqueue(spec).ok());
    lengths_[id] = {prompt, computed, output};
  }

  // Makes plans and runs a step. Returns the prompt tokens that each rank computed.
  std::vector<int64_t> Step() {
    while (auto plan = scheduler->MakePlan()) plans_[plan->apply_step] = *std::move(plan);
    ++step_;
    if (const auto now = plans_.find(step_); now != plans_.end()) {
      last = now->second;
      applied_ = step_;
      for (const Placement& p : last.placements)
        ranks_[static_cast<size_t>(p.worker)].Start(p.id, lengths_[p.id]);
    }
    std::vector<ChunkRank::Report> reports;
    std::vector<int64_t> computed;
    bool idle = true;
    seconds.clear();
    for (ChunkRank& rank : ranks_) {
      reports.push_back(rank.Step(step_, last.level_s));
      computed.push_back(reports.back().computed);
      seconds.push_back(reports.back().seconds);
      idle = idle && rank.idle();
    }
    for (const auto& [step, plan] : plans_) idle = idle && (step <= step_ || plan.placements.empty());
    for (size_t g = 0; g < ranks_.size(); ++g) {
      reports[g].report.finished = reports[g].finished;
      reports[g].report.applied_plan = applied_;
      reports[g].report.group_idle = idle;
      EXPECT_TRUE(scheduler->OnReport(static_cast<WorkerIndex>(g), reports[g].report).ok());
    }
    return computed;
  }

  std::vector<ChunkRank>& ranks() { return ranks_; }

  std::unique_ptr<OneGroup> scheduler;
  // The plan in force in the last step.
  Plan last;
  std::vector<double> seconds;

 private:
  std::vector<ChunkRank> ranks_;
  std::map<RequestId, ChunkRank::Lengths> lengths_;
  std::map<int64_t, Plan> plans_;
  int64_t step_ = 0, applied_ = 0;
};

// Fills all ranks with `each` decoding requests of 100 tokens.
void Fill(LevelGroup& group, int32_t ranks, int32_t each) {
  RequestId id = 1'000'000;
  for (int32_t i = 0; i < ranks * each; ++i) group.Enqueue(++id, 100, 100'000);
  for (int i = 0; i < 400 && group.scheduler->placed() < ranks * each; ++i) group.Step();
  for (int i = 0; i < 100; ++i) group.Step();
  for (const ChunkRank& rank : group.ranks()) ASSERT_EQ(rank.pending(), 0);
}

TEST(PromptLevel, ALonePromptIsSpreadOverSteps) {
  LevelGroup group(4);
  Fill(group, 4, 4);
  group.Enqueue(1, 2000);
  int64_t sum = 0, most = 0;
  for (int step = 0; step < 400 && sum < 2000; ++step) {
    int64_t here = 0;
    for (const int64_t computed : group.Step()) here += computed;
    sum += here;
    most = std::max(most, here);
    ASSERT_TRUE(group.last.level_s.has_value());
    for (const double seconds : group.seconds) EXPECT_LE(seconds, *group.last.level_s + 1e-9);
  }
  EXPECT_EQ(sum, 2000);
  EXPECT_LT(most, 512) << "less than the ranks' own budget";
}

// With disaggregated prefill, only the last token of the prompt is computed here.
TEST(PromptLevel, APromptThatComesComputedIsNoWork) {
  std::vector<double> levels;
  for (const int64_t computed : {0, 1999}) {
    LevelGroup group(4);
    Fill(group, 4, 4);
    group.Enqueue(1, 2000, 50, 0, std::nullopt, computed);
    std::vector<int64_t> step = group.Step();
    const auto rank = std::max_element(step.begin(), step.end()) - step.begin();
    ASSERT_TRUE(group.last.level_s.has_value());
    levels.push_back(*group.last.level_s);
    if (computed == 0) continue;
    EXPECT_EQ(std::accumulate(step.begin(), step.end(), int64_t{0}), 1) << "in one step";
    EXPECT_EQ(group.ranks()[static_cast<size_t>(rank)].decodes(), 5);
  }
  EXPECT_LT(levels[1], levels[0]);
}

TEST(PromptLevel, WithoutDecodesPromptsAreNotDelayed) {
  LevelGroup group(2);
  // A first request, so that the ranks have reported.
  group.Enqueue(1, 10, 1);
  group.Step();
  group.Enqueue(2, 1000, 5);
  EXPECT_EQ(group.Step()[0] + group.Step()[0], 1000) << "by the rank's own budget alone";
  EXPECT_EQ(group.last.level_s, std::nullopt);
}

TEST(PromptLevel, APromptLeavesThePoolWhenItsRankHasNoneToCompute) {
  LevelGroup group(2);
  Fill(group, 2, 4);
  for (RequestId id = 1; id <= 6; ++id) group.Enqueue(id, 1500);
  for (int step = 0; step < 50; ++step) {
    group.Step();
    if (step == 0) {
      EXPECT_EQ(group.scheduler->waiting(), 4) << "one each, though there are slots for all";
    }
    for (const ChunkRank& rank : group.ranks()) EXPECT_LE(rank.pending(), 1500 + 1500);
  }
  for (int step = 0; step < 1000 && group.scheduler->waiting() > 0; ++step) group.Step();
  EXPECT_EQ(group.scheduler->waiting(), 0);
}

TEST(PromptLevel, WithoutTheRanksCostOrUnderABaselineThereIsNoLevel) {
  for (const char* policy : {"bf_io_auto", "vllm"}) {
    LevelGroup group(2, PlanMode::kLockstep, policy, 16, /*told=*/policy != std::string("bf_io_auto"));
    Fill(group, 2, 4);
    for (RequestId id = 1; id <= 6; ++id) group.Enqueue(id, 1500);
    group.Step();
    EXPECT_EQ(group.scheduler->waiting(), 0);
    EXPECT_EQ(group.last.level_s, std::nullopt);
  }
}

TEST(PromptLevel, AHigherClassGoesFirstAndALowerTakesTheRanksThatItLeaves) {
  LevelGroup group(2);
  Fill(group, 2, 4);
  group.Enqueue(1, 50);
  group.Enqueue(2, 50);
  group.Enqueue(3, 2000, 50, /*priority=*/1);
  group.Step();
  EXPECT_TRUE(group.scheduler->WorkerOf(3).has_value());
  EXPECT_TRUE(group.scheduler->WorkerOf(1).has_value());
  EXPECT_NE(group.scheduler->WorkerOf(1), group.scheduler->WorkerOf(3));
}

// Fewer slots than waiting requests: the policy chooses the requests, and no rank takes more prompts than it
// can use.
TEST(PromptLevel, WhereSlotsAreShortThePolicyChoosesTheRequests) {
  for (const char* policy : {"bf_io_auto", "bf_io"}) {
    LevelGroup group(2, PlanMode::kLockstep, policy, /*slots=*/6);
    Fill(group, 2, 4);
    for (RequestId id = 1; id <= 20; ++id) group.Enqueue(id, 1500);
    group.Step();
    EXPECT_EQ(group.scheduler->waiting(), 18) << policy;
    EXPECT_TRUE(group.last.level_s.has_value());
  }
}

TEST(PromptLevel, APromptThatFitsNoMemoryOfItsRankGoesToAnother) {
  LevelGroup group(2, PlanMode::kLockstep, "bf_io_auto", 16, true, /*kv_tokens=*/3000);
  // By decode time alone the third request would go to the rank of the single small one.
  group.Enqueue(1, 1000, 1500);
  group.Enqueue(2, 10, 2900);
  for (int i = 0; i < 10; ++i) group.Step();
  ASSERT_NE(group.scheduler->WorkerOf(1), group.scheduler->WorkerOf(2));
  group.Enqueue(3, 300, 100);
  group.Step();
  EXPECT_EQ(group.scheduler->WorkerOf(3), group.scheduler->WorkerOf(1));
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
    Fill(group, 3, 4);
    seen.clear();
    const int32_t lag = mode == PlanMode::kPipelined ? 1 : 0;
    // The snapshots' view, and the ranks themselves, by the step that they describe.
    std::map<int, PrefillView> shown;
    std::map<int, std::vector<ChunkRank>> ranks;
    RequestId next = 1;
    for (int step = 0; step < 200; ++step) {
      if (step % 5 == 0) group.Enqueue(next++, 40 + 37 * (step % 17), 100'000);
      ranks[step] = group.ranks();
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
        const ChunkRank& rank = ranks[step][g];
        EXPECT_EQ(pending, rank.pending()) << "step " << step << ", rank " << g << ", lag " << lag;
        EXPECT_EQ(view.ranks[g].decodes, rank.decodes()) << "step " << step << ", rank " << g;
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
    std::map<bool, double> took_s;
    double longest_s = 0;
    for (const bool objective : {false, true}) {
      std::vector<PrefillView> seen;
      LevelGroup group(2, mode, std::make_unique<Watching>(&seen), 64, true, 10'000'000);
      Fill(group, 2, 12);
      group.Enqueue(1, 4000, 50, 0, objective ? std::optional(0.5) : std::nullopt);
      double& seconds = took_s[objective];
      int64_t left = 4000;
      for (int step = 0; step < 1000 && left > 0; ++step) {
        seen.clear();
        const std::vector<int64_t> computed = group.Step();
        left -= computed[0] + computed[1];
        const double step_s = *std::max_element(group.seconds.begin(), group.seconds.end());
        seconds += step_s;
        if (objective) longest_s = std::max(longest_s, step_s);
        if (seen.empty() || seen.back().ranks[0].prompts.size() + seen.back().ranks[1].prompts.size() != 1)
          continue;
        for (const PrefillRank& rank : seen.back().ranks) {
          ASSERT_EQ(rank.due_s.size(), rank.prompts.size());
          if (rank.due_s.empty()) continue;
          if (!objective) {
            EXPECT_EQ(rank.due_s[0], kNoObjective);
          } else {
            // Ages are counted in steps of the mean duration.
            EXPECT_NEAR(rank.due_s[0], 0.5 - seconds, 0.03 + 0.2 * seconds) << step;
          }
        }
      }
      ASSERT_EQ(left, 0);
    }
    EXPECT_GT(took_s[false], 0.5);
    // Ages are counted in mean steps: the last step may end later than the objective by that error.
    EXPECT_LE(took_s[true], 0.5 + longest_s);
  }
}

TEST(PromptReports, InconsistentReportsAreRefused) {
  LevelGroup group(1);
  StepReport report = {.step = 1};
  report.prefill.emplace().token_budget = -1;
  EXPECT_EQ(group.scheduler->OnReport(0, report).code(), absl::StatusCode::kInvalidArgument);
  report.prefill = {512, {{1, 0}}};
  EXPECT_EQ(group.scheduler->OnReport(0, report).code(), absl::StatusCode::kInvalidArgument);
}

// Random traffic: no request starves, no rank with decodes exceeds both the level and its decode time, no
// rank has more prompts than it can use, and the accounts are exact.
void RunTraffic(PlanMode mode, int32_t slots, uint64_t seed) {
  SCOPED_TRACE(seed);
  Rng rng(seed);
  LevelGroup group(4, mode, "bf_io_auto", slots);
  RequestId next = 1;
  int64_t levels = 0;
  for (int64_t step = 1; step <= 400 || group.scheduler->placed() + group.scheduler->waiting() > 0; ++step) {
    ASSERT_LT(step, 8000) << "a prompt starves";
    if (step <= 400 && rng.Below(3) == 0) {
      group.Enqueue(next++, 1 + static_cast<int64_t>(rng.Below(1500)),
                    1 + static_cast<int64_t>(rng.Below(80)));
    }
    std::vector<double> alone;
    for (const ChunkRank& rank : group.ranks()) alone.push_back(rank.SecondsWithoutPrompts());
    group.Step();
    if (!group.last.level_s) continue;
    ++levels;
    for (size_t g = 0; g < alone.size(); ++g) {
      EXPECT_LE(group.seconds[g], std::max(alone[g], *group.last.level_s) + 1e-9);
    }
  }
  EXPECT_GT(levels, 100);
  EXPECT_EQ(group.scheduler->totals().drift_tokens, 0);
  EXPECT_EQ(group.scheduler->totals().policy_violations, 0);
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
