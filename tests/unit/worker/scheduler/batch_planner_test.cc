// What a step contains: the paper's worked example, and a token-by-token reference on random traffic.
#include "worker/scheduler/batch_planner.h"

#include <numeric>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/rng.h"
#include "gmock/gmock.h"

namespace bfio::worker {
namespace {

using ::testing::ElementsAre;

constexpr BatchCost kCost = {.c_s = 1, .a_s_per_token = 0.01, .b0_tokens = 0};

// The level at which `tokens` prompt tokens fit beside `decodes` decodes without context.
PrefillLevel LevelFor(int64_t tokens, int64_t decodes) {
  return {kCost.Seconds(tokens + decodes), kCost};
}

int64_t Decoding(const std::vector<BatchRequest>& requests) {
  return std::count_if(requests.begin(), requests.end(),
                       [](const BatchRequest& request) { return request.decoding(); });
}

// How many tokens each request gets: every decode, then `prompt_tokens` one at a time, each to the first
// prompt in line that has one left.
std::vector<int64_t> ExpectedTokens(const std::vector<BatchRequest>& requests, int64_t prompt_tokens) {
  std::vector<int32_t> line(requests.size());
  std::iota(line.begin(), line.end(), 0);
  std::stable_sort(line.begin(), line.end(), [&](int32_t a, int32_t b) {
    const BatchRequest &x = requests[a], &y = requests[b];
    const auto overdue = [](const BatchRequest& r) { return r.passed_over >= kPatienceSteps; };
    if (overdue(x) || overdue(y)) return overdue(x) && !overdue(y);
    return x.priority != y.priority ? x.priority > y.priority : x.senior_step < y.senior_step;
  });
  std::vector<int64_t> given(requests.size(), 0);
  for (size_t i = 0; i < requests.size(); ++i) given[i] = requests[i].decoding() ? 1 : 0;
  for (; prompt_tokens > 0; --prompt_tokens) {
    const auto next = std::find_if(line.begin(), line.end(),
                                   [&](int32_t i) { return given[i] < requests[i].prefill_left; });
    if (next == line.end()) break;
    ++given[*next];
  }
  return given;
}

std::vector<int64_t> TokensOf(const std::vector<Chunk>& batch, size_t requests) {
  std::vector<int64_t> given(requests, 0);
  for (const Chunk& chunk : batch) given.at(chunk.which) += chunk.rows;
  return given;
}

// Takes a step's tokens off what is left.
void Apply(const std::vector<Chunk>& batch, std::vector<BatchRequest>& requests) {
  for (const Chunk& chunk : batch) {
    BatchRequest& request = requests[chunk.which];
    (request.prefill_left > 0 ? request.prefill_left : request.decode_left) -= chunk.rows;
  }
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

// Of "Throughput-Optimal Scheduling": A, B and C have 2, 4 and 3 decodes left; D and E, with a prompt token
// and a decode each, arrive during the first step. In the paper the budget is 4; here decodes leave prompts
// at least kMinPrefillRows, so a level of one prompt token a step takes its place.
TEST(BatchPlannerTest, ThePapersWorkedExample) {
  BatchPlanner planner(4);
  std::vector<BatchRequest> requests = {{0, 2}, {0, 4}, {0, 3}};
  std::vector<std::string> steps;
  std::vector<Chunk> batch;
  do {
    planner.SetLevel(LevelFor(1, Decoding(requests)));
    planner.Form(requests, batch);
    steps.push_back(Letters(batch, requests));
    Apply(batch, requests);
    if (steps.size() == 1) requests.insert(requests.end(), 2, {1, 1});
  } while (!batch.empty());
  EXPECT_THAT(steps, ElementsAre("ABC", "ABC Dp", "BCD Ep", "BE", ""));
}

TEST(BatchPlannerTest, WithoutABudgetPromptsAreWholeWhateverTheLevel) {
  BatchPlanner planner(BatchPlanner::kUnbounded);
  EXPECT_TRUE(planner.whole_prompts());
  planner.SetLevel(LevelFor(20, 1));
  std::vector<Chunk> batch;
  planner.Form(std::vector<BatchRequest>{{0, 5}, {1000, 5}}, batch);
  EXPECT_EQ(TokensOf(batch, 2), (std::vector<int64_t>{1, 1000}));
}

TEST(BatchPlannerTest, ALevelIsFilledByTheEnginesOwnStepCosts) {
  BatchPlanner planner(512);
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

// An engine's steps from the first to the last request, with changing levels from the router: every step is
// as batch_planner.h states, and all requests end.
TEST(BatchPlannerPropertyTest, RandomTrafficMeetsTheRulesForAnyLevelAndBudget) {
  constexpr int kSteps = 500;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    const auto below = [&](uint64_t n) { return static_cast<int64_t>(rng.Below(n)); };
    BatchPlanner planner(1 + below(600));
    std::optional<int64_t> level;
    std::vector<BatchRequest> left;
    std::vector<Chunk> batch;
    for (int step = 0; step < kSteps || !left.empty(); ++step) {
      ASSERT_LT(step, 20 * kSteps) << "traffic does not end";
      if (step < kSteps && rng.Below(3) > 0) {
        left.push_back({.prefill_left = 1 + below(250),
                        .decode_left = 1 + below(40),
                        .priority = below(3),
                        .senior_step = step - below(20)});
      }
      if (rng.Below(8) == 0) {
        level.reset();
        if (rng.Below(3) > 0) level = 1 + below(100);
      }
      const int64_t decoding = Decoding(left);
      planner.SetLevel(level ? std::optional(LevelFor(*level, decoding)) : std::nullopt);
      planner.Form(left, batch);
      const int64_t prompt_tokens = std::min(std::max(planner.budget() - decoding, kMinPrefillRows),
                                             level.value_or(BatchPlanner::kUnbounded));
      if (!left.empty()) {
        const auto rows = [](int64_t sum, const Chunk& chunk) { return sum + chunk.rows; };
        ASSERT_LE(std::accumulate(batch.begin(), batch.end(), int64_t{0}, rows),
                  MaxRows(static_cast<int64_t>(left.size()), planner.budget()));
      }
      ASSERT_EQ(TokensOf(batch, left.size()), ExpectedTokens(left, prompt_tokens));
      ASSERT_EQ(batch.empty(), left.empty());
      Apply(batch, left);
      CountPassedOver(batch, left);
      std::erase_if(
          left, [](const BatchRequest& request) { return request.prefill_left + request.decode_left == 0; });
    }
  }
}

}  // namespace
}  // namespace bfio::worker
