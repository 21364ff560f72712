// The batch planner: what an engine adds to a scheduler alone.
#include "worker/scheduler/batch_planner.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/rng.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/scheduler/batch_check.h"

namespace bfio::worker {
namespace {

using ::testing::HasSubstr;

BatchPlanner MakePlanner(const BatchPlannerOptions& options) {
  auto made = BatchPlanner::Create(options);
  EXPECT_TRUE(made.ok()) << made.status();
  return *std::move(made);
}

struct PlannedRows {
  int64_t prompts = 0, decodes = 0;
  friend bool operator==(const PlannedRows&, const PlannedRows&) = default;
};

constexpr BatchCost kCost = {.c_s = 1, .a_s_per_token = 0.01, .b0_tokens = 0};

// The level at which `tokens` prompt tokens fit beside `decodes` decodes without context.
PrefillLevel LevelFor(int64_t tokens, int64_t decodes) {
  return {kCost.Seconds(tokens + decodes), kCost};
}

// Plans a step of `decodes` decoding requests and a prompt of 1,000 tokens; the level, if any, admits
// `tokens` prompt tokens.
PlannedRows PlanOf(BatchPlannerOptions options, int64_t decodes,
                   std::optional<int64_t> tokens = std::nullopt) {
  BatchPlanner planner = MakePlanner(options);
  if (tokens) planner.SetLevel(LevelFor(*tokens, decodes));
  std::vector<BatchRequest> left(static_cast<size_t>(decodes), {0, 5});
  left.push_back({1000, 5});
  std::vector<Chunk> batch;
  planner.Form(left, batch);
  PlannedRows rows;
  for (const Chunk& chunk : batch) (chunk.which < decodes ? rows.decodes : rows.prompts) += chunk.rows;
  return rows;
}

TEST(BatchPlannerTest, SarathiRunsAllDecodesAndAMinimumOfPrompts) {
  EXPECT_EQ(PlanOf({.token_budget = 100}, 30), (PlannedRows{70, 30}));
  EXPECT_EQ(PlanOf({.token_budget = 100}, 95), (PlannedRows{kMinPrefillRows, 95}));
  EXPECT_EQ(PlanOf({.token_budget = 100}, 300), (PlannedRows{kMinPrefillRows, 300}));
}

TEST(BatchPlannerTest, WithoutABudgetPromptsAreWholeWhateverTheLevel) {
  const BatchPlannerOptions unbounded = {.token_budget = BatchCapacity::kUnbounded};
  EXPECT_TRUE(MakePlanner(unbounded).whole_prompts());
  EXPECT_EQ(PlanOf(unbounded, 30), (PlannedRows{1000, 30}));
  EXPECT_EQ(PlanOf(unbounded, 30, 20), (PlannedRows{1000, 30}));
}

TEST(BatchPlannerTest, PromptsNeverTakeMoreThanTheBudget) {
  // Under orca prompts come first, but they do not get the extra rows that are allowed for many decodes.
  EXPECT_EQ(PlanOf({.scheduler = "orca", .token_budget = 100}, 30), (PlannedRows{100, 0}));
  EXPECT_EQ(PlanOf({.scheduler = "orca", .token_budget = 100}, 300), (PlannedRows{100, 216}));
  EXPECT_EQ(PlanOf({.scheduler = "vllm_v0", .token_budget = 1005, .max_sequence_tokens = 1005}, 2000),
            (PlannedRows{1000, 0}));
  EXPECT_EQ(
      PlanOf({.scheduler = "faster_transformer", .token_budget = 1005, .max_sequence_tokens = 1005}, 2000),
      (PlannedRows{0, 2000}));
}

TEST(BatchPlannerTest, TheLevelBoundsPromptsUnlessTheyAreTakenWhole) {
  EXPECT_EQ(PlanOf({.token_budget = 512}, 30, 64), (PlannedRows{64, 30}));
  EXPECT_EQ(PlanOf({.token_budget = 512}, 30, 5000), (PlannedRows{482, 30}));
  EXPECT_EQ(PlanOf({.scheduler = "orca", .token_budget = 512}, 30, 64), (PlannedRows{64, 30}));
  EXPECT_EQ(PlanOf({.scheduler = "vllm_v0", .token_budget = 1005, .max_sequence_tokens = 1005}, 30, 64),
            (PlannedRows{1000, 0}));
}

TEST(BatchPlannerTest, ALevelIsFilledByTheEnginesOwnStepCosts) {
  BatchPlanner planner = MakePlanner({.token_budget = 512});
  const BatchCost cost = {
      .c_s = 1, .a_s_per_token = 0.01, .b0_tokens = 40, .k1_s_per_pair = 1e-4, .k2_s_per_token = 1e-3};
  planner.SetLevel(PrefillLevel{2, cost});
  std::vector<BatchRequest> left(30, {.prefill_left = 0, .decode_left = 5, .cached = 10});
  left.push_back({.prefill_left = 300, .decode_left = 5, .cached = 100});
  std::vector<Chunk> batch;
  planner.Form(left, batch);
  ASSERT_EQ(batch.size(), 31u);
  BatchLoad load;
  for (int i = 0; i < 30; ++i) load.AddDecode(10);
  BatchLoad more = load;
  load.AddPrefill(batch.back().rows, 100);
  more.AddPrefill(batch.back().rows + 1, 100);
  EXPECT_LE(cost.Seconds(load), 2);
  EXPECT_GT(cost.Seconds(more), 2);
  // The decodes alone take longer than the level, so no prompt is computed.
  planner.SetLevel(PrefillLevel{1.2, cost});
  planner.Form(left, batch);
  EXPECT_EQ(batch.size(), 30u);
}

TEST(BatchPlannerTest, WholePromptsNeedABudgetThatHoldsTheLongestSequence) {
  for (const char* name : {"vllm_v0", "faster_transformer"}) {
    const auto refused =
        BatchPlanner::Create({.scheduler = name, .token_budget = 512, .max_sequence_tokens = 513});
    EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(refused.status().message()),
                HasSubstr("token_budget must be at least max_sequence_tokens, 513"));
    EXPECT_TRUE(
        BatchPlanner::Create({.scheduler = name, .token_budget = 513, .max_sequence_tokens = 513}).ok());
  }
  EXPECT_TRUE(BatchPlanner::Create({.token_budget = 1, .max_sequence_tokens = 513}).ok());
}

TEST(BatchPlannerTest, EveryOrderServesEachResidentEventually) {
  for (const BatchOrder order : {BatchOrder::kShortest, BatchOrder::kPriority}) {
    for (const char* name : {"sarathi", "orca"}) {
      SCOPED_TRACE(absl::StrCat(name, static_cast<int>(order)));
      BatchScheduler scheduler = BatchScheduler::Create(name, order).value();
      // A long prompt and an endless sequence of short urgent ones.
      std::vector<BatchRequest> left = {{500, 5}};
      std::vector<Chunk> batch;
      int64_t longest = 0;
      for (int step = 0; step < 2000 && left[0].prefill_left > 0; ++step) {
        left.resize(1);
        for (int i = 0; i < 4; ++i) left.push_back({16, 1, 1});
        scheduler.Form(left, {.token_budget = 32}, batch);
        longest = std::max(longest, left[0].passed_over);
        CountPassedOver(batch, left);
        for (const Chunk& chunk : batch) left[chunk.which].prefill_left -= chunk.rows;
      }
      EXPECT_EQ(left[0].prefill_left, 0);
      EXPECT_EQ(longest, kPatienceBatches);
    }
  }
}

// Invariants of every step on random requests.
TEST(BatchPlannerPropertyTest, StepsMeetTheRules) {
  for (uint64_t seed = 1; seed <= 400; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    const std::vector<std::string> names = SchedulerNames();
    BatchPlannerOptions options;
    options.scheduler = names[seed % names.size()];
    options.order = static_cast<BatchOrder>(rng.Below(3));
    options.max_sequence_tokens = 300;
    options.token_budget = 300 + static_cast<int64_t>(rng.Below(300));
    const bool whole = options.scheduler == "vllm_v0" || options.scheduler == "faster_transformer";
    if (!whole) options.token_budget = 1 + static_cast<int64_t>(rng.Below(300));
    BatchPlanner planner = MakePlanner(options);
    std::optional<int64_t> chunk;
    if (rng.Below(2) == 0) chunk = static_cast<int64_t>(rng.Below(200));
    std::vector<BatchRequest> left;
    int64_t decoding = 0, prompts = 0;
    for (uint64_t i = rng.Below(60); i > 0; --i) {
      BatchRequest request = {0, 1 + static_cast<int64_t>(rng.Below(40)), static_cast<int64_t>(rng.Below(3))};
      if (rng.Below(2) == 0) request.prefill_left = 1 + static_cast<int64_t>(rng.Below(250));
      request.passed_over = static_cast<int64_t>(rng.Below(100));
      request.prefill_left > 0 ? prompts += request.prefill_left : ++decoding;
      left.push_back(request);
    }
    if (chunk) planner.SetLevel(LevelFor(*chunk, decoding));
    std::vector<Chunk> batch, again;
    planner.Form(left, batch);
    planner.Form(left, again);
    BatchCapacity capacity = {.token_budget =
                                  MaxRows(static_cast<int64_t>(left.size()), options.token_budget)};
    if (chunk && !whole) capacity.prefill_tokens = *chunk;
    ASSERT_TRUE(CheckBatch(left, capacity, batch).ok()) << CheckBatch(left, capacity, batch);
    PlannedRows rows;
    for (const Chunk& chunk : batch) {
      (left[chunk.which].decoding() ? rows.decodes : rows.prompts) += chunk.rows;
    }
    EXPECT_LE(rows.prompts, std::max(options.token_budget, kMinPrefillRows));
    EXPECT_EQ(BatchTokens(batch), BatchTokens(again));
    EXPECT_EQ(batch.empty(), left.empty() || (decoding == 0 && !whole && chunk == 0));
    if (options.scheduler == "sarathi") {
      const int64_t allowed = std::min(chunk.value_or(BatchCapacity::kUnbounded),
                                       std::max(options.token_budget - decoding, kMinPrefillRows));
      EXPECT_EQ(rows, (PlannedRows{std::min(prompts, allowed), decoding}));
    }
  }
}

// An engine's steps from the first to the last request, with changing levels from the router.
class PlannerTraffic {
 public:
  PlannerTraffic(const std::string& name, BatchOrder order, uint64_t seed)
      : rng_(seed), options_(OptionsFor(name, order, rng_)), planner_(MakePlanner(options_)) {}

  void Run() {
    std::vector<Chunk> batch;
    for (int step = 0; step < kSteps || !left_.empty(); ++step) {
      ASSERT_LT(step, 20 * kSteps) << "traffic does not end";
      if (step < kSteps && rng_.Below(3) > 0) Arrive();
      if (rng_.Below(8) == 0) {
        piece_.reset();
        if (rng_.Below(3) > 0) piece_ = 1 + static_cast<int64_t>(rng_.Below(100));
      }
      const int64_t decoding = std::count_if(left_.begin(), left_.end(),
                                             [](const BatchRequest& request) { return request.decoding(); });
      planner_.SetLevel(piece_ ? std::optional(LevelFor(*piece_, decoding)) : std::nullopt);
      planner_.Form(left_, batch);
      ExpectRules(batch);
      if (::testing::Test::HasFailure()) return;
      Take(batch);
    }
  }

 private:
  static constexpr int kSteps = 500;
  struct Made {
    int64_t prompt, prefilled = 0;
  };
  static bool Whole(const BatchPlannerOptions& options) {
    return options.scheduler == "vllm_v0" || options.scheduler == "faster_transformer";
  }
  static BatchPlannerOptions OptionsFor(const std::string& name, BatchOrder order, Rng& rng) {
    BatchPlannerOptions options;
    options.scheduler = name;
    options.order = order;
    options.max_sequence_tokens = 300;
    options.token_budget = 300 + static_cast<int64_t>(rng.Below(300));
    if (!Whole(options)) options.token_budget = 1 + static_cast<int64_t>(rng.Below(600));
    return options;
  }

  void Arrive() {
    BatchRequest request;
    request.prefill_left = 1 + static_cast<int64_t>(rng_.Below(250));
    request.decode_left = static_cast<int64_t>(rng_.Below(40));
    request.priority = static_cast<int64_t>(rng_.Below(3));
    left_.push_back(request);
    made_.push_back({request.prefill_left});
  }

  // Checks the rules that batch_planner.h states.
  void ExpectRules(const std::vector<Chunk>& batch) {
    int64_t decoding = 0;
    for (const BatchRequest& request : left_) decoding += request.decoding() ? 1 : 0;
    ASSERT_EQ(planner_.budget(), options_.token_budget);
    BatchCapacity capacity;
    if (Whole(options_)) {
      capacity.token_budget = std::max(planner_.budget(), decoding);
      capacity.prefill_tokens = planner_.budget();
    } else {
      capacity.token_budget = std::max(planner_.budget(), decoding + kMinPrefillRows);
      capacity.prefill_tokens =
          std::min(std::max(planner_.budget(), kMinPrefillRows), piece_.value_or(BatchCapacity::kUnbounded));
    }
    ASSERT_LE(capacity.token_budget, MaxRows(static_cast<int64_t>(left_.size()), options_.token_budget));
    const absl::Status rules = CheckBatch(left_, capacity, batch);
    ASSERT_TRUE(rules.ok()) << rules;
    ASSERT_EQ(batch.empty(), left_.empty());
    if (!planner_.scheduler().work_conserving()) return;
    const absl::Status conserved = CheckWorkConservation(left_, capacity, options_.order, batch);
    ASSERT_TRUE(conserved.ok()) << conserved;
    if (options_.scheduler != "sarathi") return;
    for (const Chunk& chunk : batch) decoding -= left_[chunk.which].decoding() ? 1 : 0;
    ASSERT_EQ(decoding, 0) << "a decode was kept out";
  }

  void Take(const std::vector<Chunk>& batch) {
    for (const Chunk& chunk : batch) {
      BatchRequest& request = left_[chunk.which];
      Made& made = made_[chunk.which];
      if (request.prefill_left > 0) {
        request.prefill_left -= chunk.rows;
        made.prefilled += chunk.rows;
      } else {
        EXPECT_EQ(made.prefilled, made.prompt) << "a decode before the prompt's end";
        request.decode_left -= chunk.rows;
      }
    }
    CountPassedOver(batch, left_);
    size_t kept = 0;
    for (size_t i = 0; i < left_.size(); ++i) {
      if (left_[i].prefill_left == 0 && left_[i].decode_left == 0) continue;
      left_[kept] = left_[i];
      made_[kept++] = made_[i];
    }
    left_.resize(kept);
    made_.resize(kept);
  }

  Rng rng_;
  const BatchPlannerOptions options_;
  BatchPlanner planner_;
  std::optional<int64_t> piece_;
  std::vector<BatchRequest> left_;
  std::vector<Made> made_;
};

TEST(BatchPlannerPropertyTest, RandomTrafficMeetsTheRulesForAnyLevelAndBudget) {
  for (const std::string& name : SchedulerNames()) {
    for (const BatchOrder order : {BatchOrder::kFcfs, BatchOrder::kShortest, BatchOrder::kPriority}) {
      for (uint64_t seed = 1; seed <= 4; ++seed) {
        SCOPED_TRACE(absl::StrCat(name, ", order ", static_cast<int>(order), ", seed ", seed));
        PlannerTraffic traffic(name, order, seed);
        traffic.Run();
        if (::testing::Test::HasFailure()) return;
      }
    }
  }
}

}  // namespace
}  // namespace bfio::worker
