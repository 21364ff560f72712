// The batch schedulers and the planner that an engine adds: the paper's worked example, and a token-by-token
// reference on random requests and traffic.
#include "worker/scheduler/batch_scheduler.h"

#include <optional>

#include "absl/strings/str_cat.h"
#include "common/base/rng.h"
#include "gmock/gmock.h"
#include "tests/unit/worker/scheduler/batch_oracle.h"
#include "worker/scheduler/batch_planner.h"

namespace bfio::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

BatchScheduler Make(absl::string_view name, BatchOrder order = BatchOrder::kFcfs) {
  auto made = BatchScheduler::Create(name, order);
  EXPECT_TRUE(made.ok()) << made.status();
  return *std::move(made);
}

// A batch as text, such as "ABC Dp": decodes by their letter, prompts with a p.
std::string Letters(absl::Span<const Chunk> batch, const std::vector<BatchRequest>& requests) {
  std::string decodes, prompts;
  for (const Chunk& chunk : batch) {
    const char letter = static_cast<char>('A' + chunk.which);
    if (requests[chunk.which].prefill_left == 0) {
      decodes += letter;
    } else {
      absl::StrAppend(&prompts, decodes.empty() && prompts.empty() ? "" : " ", std::string(1, letter), "p");
    }
  }
  return absl::StrCat(decodes, prompts);
}

// A, B and C have 2, 4 and 3 decodes left; D and E, with a prompt token and a decode each, arrive during
// batch 1.
std::vector<std::string> WorkedExample(absl::string_view name, int64_t budget) {
  BatchScheduler scheduler = Make(name);
  std::vector<BatchRequest> requests = {{0, 2}, {0, 4}, {0, 3}};
  std::vector<std::string> batches;
  std::vector<Chunk> batch;
  for (int i = 0; i < 20; ++i) {
    scheduler.Form(requests, {budget}, batch);
    if (batch.empty()) break;
    std::sort(batch.begin(), batch.end(), [](const Chunk& a, const Chunk& b) { return a.which < b.which; });
    batches.push_back(Letters(batch, requests));
    Apply(batch, requests);
    if (i == 0) requests.insert(requests.end(), 2, {1, 1});
  }
  return batches;
}

TEST(BatchSchedulerTest, ThePapersWorkedExample) {
  EXPECT_THAT(WorkedExample("vllm_v0", 4), ElementsAre("ABC", "Dp Ep", "ABCD", "BCE", "B"));
  EXPECT_THAT(WorkedExample("faster_transformer", 4), ElementsAre("ABC", "ABC", "BC", "B", "Dp Ep", "DE"));
  EXPECT_THAT(WorkedExample("sarathi", 4), ElementsAre("ABC", "ABC Dp", "BCD Ep", "BE"));
  EXPECT_THAT(WorkedExample("orca", 5), ElementsAre("ABC", "ABC Dp Ep", "BCDE", "B"));
  // With a budget of 5 orca ends as soon as sarathi does with 4; with 4 it lacks one token for C.
  EXPECT_THAT(WorkedExample("orca", 4), ElementsAre("ABC", "AB Dp Ep", "BCDE", "BC"));
}

TEST(BatchSchedulerTest, UnknownNamesAreRefusedWithTheKnownOnes) {
  EXPECT_THAT(SchedulerNames(), ElementsAre("sarathi", "orca", "vllm_v0", "faster_transformer"));
  EXPECT_THAT(
      std::string(BatchScheduler::Create("vllm").status().message()),
      HasSubstr("unknown scheduler 'vllm'; must be one of sarathi, orca, vllm_v0, faster_transformer"));
  EXPECT_EQ(ParseBatchOrder("shortest").value(), BatchOrder::kShortest);
  EXPECT_THAT(std::string(ParseBatchOrder("lifo").status().message()), HasSubstr("unknown order 'lifo'"));
}

// Random states of requests: some hold slots, some have waited, and capacity is short of everything at times.
TEST(BatchSchedulerTest, EveryBatchIsThatOfTheDefinition) {
  for (const std::string& name : SchedulerNames()) {
    for (const BatchOrder order :
         {BatchOrder::kFcfs, BatchOrder::kShortest, BatchOrder::kPriority, BatchOrder::kUrgency}) {
      BatchScheduler scheduler = Make(name, order);
      for (uint64_t seed = 1; seed <= 500; ++seed) {
        SCOPED_TRACE(absl::StrCat(name, ", order ", static_cast<int>(order), ", seed ", seed));
        Rng rng(seed);
        const auto below = [&](uint64_t n) { return static_cast<int64_t>(rng.Below(n)); };
        BatchCapacity capacity = {.token_budget = 1 + below(rng.Below(2) == 0 ? 10 : 400)};
        if (rng.Below(2) == 0) capacity.free_slots = below(6);
        if (rng.Below(2) == 0) capacity.free_kv_tokens = below(500);
        if (rng.Below(3) == 0) capacity.prefill_tokens = below(100);
        std::vector<BatchRequest> requests(rng.Below(12));
        for (BatchRequest& request : requests) {
          request.resident = rng.Below(2) == 0;
          if (!request.resident || rng.Below(2) == 0) request.prefill_left = 1 + below(150);
          request.decode_left = below(40);
          request.priority = below(3);
          request.senior_step = below(20) - 10;
          request.kv_tokens = request.prefill_left + request.decode_left;
          request.passed_over = kPatienceBatches - 2 + below(4);
        }
        std::vector<Chunk> batch;
        scheduler.Form(requests, capacity, batch);
        ASSERT_EQ(TokensOf(batch, requests.size()), ExpectedBatch(name, order, requests, capacity));
      }
    }
  }
}

BatchPlanner MakePlanner(const BatchPlannerOptions& options) {
  auto made = BatchPlanner::Create(options);
  EXPECT_TRUE(made.ok()) << made.status();
  return *std::move(made);
}

constexpr BatchCost kCost = {.c_s = 1, .a_s_per_token = 0.01, .b0_tokens = 0};

// The level at which `tokens` prompt tokens fit beside `decodes` decodes without context.
PrefillLevel LevelFor(int64_t tokens, int64_t decodes) {
  return {kCost.Seconds(tokens + decodes), kCost};
}

TEST(BatchPlannerTest, WithoutABudgetPromptsAreWholeWhateverTheLevel) {
  BatchPlanner planner = MakePlanner({.token_budget = BatchCapacity::kUnbounded});
  EXPECT_TRUE(planner.whole_prompts());
  planner.SetLevel(LevelFor(20, 1));
  std::vector<Chunk> batch;
  planner.Form(std::vector<BatchRequest>{{0, 5}, {1000, 5}}, batch);
  EXPECT_EQ(TokensOf(batch, 2), (std::vector<int64_t>{1, 1000}));
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

// An engine's steps from the first to the last request, with changing levels from the router: every batch is
// the scheduler's within the capacity that batch_planner.h states, and all requests end.
void RunTraffic(const std::string& name, BatchOrder order, uint64_t seed) {
  constexpr int kSteps = 500;
  Rng rng(seed);
  const auto below = [&](uint64_t n) { return static_cast<int64_t>(rng.Below(n)); };
  const bool whole = TakesWholePrompts(name);
  const int64_t budget = whole ? 300 + below(300) : 1 + below(600);
  BatchPlanner planner =
      MakePlanner({.scheduler = name, .order = order, .token_budget = budget, .max_sequence_tokens = 300});
  ASSERT_EQ(planner.budget(), budget);
  std::optional<int64_t> level;
  std::vector<BatchRequest> left;
  std::vector<Chunk> batch;
  for (int step = 0; step < kSteps || !left.empty(); ++step) {
    ASSERT_LT(step, 20 * kSteps) << "traffic does not end";
    if (step < kSteps && rng.Below(3) > 0) left.push_back({1 + below(250), below(40), below(3)});
    if (rng.Below(8) == 0) {
      level.reset();
      if (rng.Below(3) > 0) level = 1 + below(100);
    }
    const int64_t decoding = std::count_if(left.begin(), left.end(),
                                           [](const BatchRequest& request) { return request.decoding(); });
    planner.SetLevel(level ? std::optional(LevelFor(*level, decoding)) : std::nullopt);
    planner.Form(left, batch);
    BatchCapacity capacity;
    if (whole) {
      capacity.token_budget = std::max(budget, decoding);
      capacity.prefill_tokens = budget;
    } else {
      capacity.token_budget = std::max(budget, decoding + kMinPrefillRows);
      capacity.prefill_tokens =
          std::min(std::max(budget, kMinPrefillRows), level.value_or(BatchCapacity::kUnbounded));
    }
    ASSERT_LE(capacity.token_budget, MaxRows(static_cast<int64_t>(left.size()), budget));
    ASSERT_EQ(TokensOf(batch, left.size()), ExpectedBatch(name, order, left, capacity));
    ASSERT_EQ(batch.empty(), left.empty());
    Apply(batch, left);
    CountPassedOver(batch, left);
    std::erase_if(left, [](const BatchRequest& request) { return request.available() == 0; });
  }
}

TEST(BatchPlannerPropertyTest, RandomTrafficMeetsTheRulesForAnyLevelAndBudget) {
  for (const std::string& name : SchedulerNames()) {
    for (const BatchOrder order : {BatchOrder::kFcfs, BatchOrder::kShortest, BatchOrder::kPriority}) {
      for (uint64_t seed = 1; seed <= 4; ++seed) {
        SCOPED_TRACE(absl::StrCat(name, ", order ", static_cast<int>(order), ", seed ", seed));
        RunTraffic(name, order, seed);
        if (::testing::Test::HasFailure()) return;
      }
    }
  }
}

}  // namespace
}  // namespace bfio::worker
