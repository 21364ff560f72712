// What a step of a decode engine contains: scheduler, order, token budget, level.

#include "gmock/gmock.h"
#include "tests/testing/decode_schedule.h"
#include "tests/unit/worker/engine/decode/hash_engine.h"
#include "worker/engine/decode/decode_engine.h"

namespace bfio::worker {
namespace {

using ::testing::ElementsAre;

// Alone under the default scheduler, and in batches of every size under each.
TEST(DecodeEngineTest, TokensDoNotDependOnTheSchedule) {
  const std::vector<std::string> names = SchedulerNames();
  for (uint64_t seed = 1; seed <= 80; ++seed) {
    Rng rng(seed);
    DecodeOptions other = Options();
    other.scheduler = names[seed % names.size()];
    other.order = static_cast<BatchOrder>(rng.Below(4));
    other.page_tokens = 1 + static_cast<int32_t>(rng.Below(20));
    // The longest prompt is that of a replay: 40 + 24 tokens.
    other.step_tokens = (seed % names.size() < 2 ? 1 : 64) + static_cast<int64_t>(rng.Below(100));
    other.limits.max_sequence_tokens = 64;
    int made = 0;
    SCOPED_TRACE(other.scheduler);
    EXPECT_GT(testing::RunSchedule(seed, [&] { return Make(made++ == 0 ? Options() : other); }, {kVocab}), 8);
  }
}

// Handles that give a token in each step while a long and an urgent prompt arrive beside a decode.
std::vector<std::vector<Handle>> Steps(const DecodeOptions& options, int steps) {
  const auto engine = Make(options);
  StepOutput out;
  EXPECT_TRUE(engine->Admit(Request(1, 4, 50)).ok());
  EXPECT_TRUE(engine->Step(out).ok());
  SequenceRequest urgent = Request(3, 8, 20);
  urgent.priority = 1;
  EXPECT_TRUE(engine->Admit(Request(2, 60, 2)).ok());
  EXPECT_TRUE(engine->Admit(urgent).ok());
  std::vector<std::vector<Handle>> handles;
  for (int i = 0; i < steps; ++i) {
    EXPECT_TRUE(engine->Step(out).ok());
    handles.emplace_back();
    for (const auto& token : out.tokens) handles.back().push_back(token.handle);
    std::sort(handles.back().begin(), handles.back().end());
  }
  return handles;
}

TEST(DecodeEngineTest, TheSchedulerDecidesWhatAStepContains) {
  using Handles = std::vector<Handle>;
  DecodeOptions options = Options();
  // 24 rows per step: 1 + 23, 1 + 23, 1 + 14 + 8.
  EXPECT_THAT(Steps(options, 3), ElementsAre(Handles{1}, Handles{1}, Handles{1, 2, 3}));
  options.order = BatchOrder::kPriority;
  EXPECT_THAT(Steps(options, 3), ElementsAre(Handles{1, 3}, Handles{1, 3}, Handles{1, 3}));
  options.order = BatchOrder::kShortest;
  EXPECT_THAT(Steps(options, 2), ElementsAre(Handles{1, 3}, Handles{1, 3}));
  options.order = BatchOrder::kFcfs;
  options.scheduler = "orca";
  // 24 prompt rows, 24 again, and then 12 + 8 with a decode.
  EXPECT_THAT(Steps(options, 3), ElementsAre(Handles{}, Handles{}, Handles{1, 2, 3}));
  options.step_tokens = 68;
  options.limits.max_sequence_tokens = 68;
  options.scheduler = "vllm_v0";
  EXPECT_THAT(Steps(options, 2), ElementsAre(Handles{2, 3}, Handles{1, 2, 3}));
  options.scheduler = "faster_transformer";
  EXPECT_THAT(Steps(options, 3), ElementsAre(Handles{1}, Handles{1}, Handles{1}));
}

// Under the urgency order the prompt of a call that has waited longer, an agent's for instance, is computed
// before those that were admitted earlier; steps on the worker count like steps in the pool.
TEST(DecodeEngineTest, PromptsThatHaveWaitedLongerAreComputedFirstUnderTheUrgencyOrder) {
  for (const BatchOrder order : {BatchOrder::kFcfs, BatchOrder::kUrgency}) {
    DecodeOptions options = Options();
    options.order = order;
    const auto engine = Make(options);
    StepOutput out;
    SequenceRequest first = Request(1, 60, 2), older = Request(2, 20, 2), younger = Request(3, 4, 2);
    first.waited_steps = 3;
    older.waited_steps = 5;
    younger.waited_steps = 4;
    EXPECT_TRUE(engine->Admit(first).ok());
    EXPECT_TRUE(engine->Step(out).ok());
    // The first now counts as waiting for 4 steps, like the youngest, which was admitted later.
    EXPECT_TRUE(engine->Admit(younger).ok());
    EXPECT_TRUE(engine->Admit(older).ok());
    std::vector<Handle> handles;
    for (int i = 0; i < 4; ++i) {
      EXPECT_TRUE(engine->Step(out).ok());
      for (const auto& token : out.tokens) {
        if (std::count(handles.begin(), handles.end(), token.handle) == 0) handles.push_back(token.handle);
      }
    }
    if (order == BatchOrder::kFcfs) {
      EXPECT_THAT(handles, ElementsAre(1, 3, 2));
    } else {
      EXPECT_THAT(handles, ElementsAre(2, 1, 3));
    }
  }
}

TEST(DecodeEngineTest, ALevelHoldsUntilTheNextAndPendingPromptsAreReported) {
  const auto engine = Make();
  ASSERT_TRUE(engine->Admit(Request(1, 60, 5)).ok());
  StepOutput out;
  const auto step = [&] {
    EXPECT_TRUE(engine->Step(out).ok());
    return std::pair(out.prefill_tokens, engine->prefill_state()->pending_tokens());
  };
  const auto level = [](int64_t tokens) {
    const BatchCost cost = {.c_s = 1, .a_s_per_token = 1, .b0_tokens = 0};
    return PrefillLevel{cost.Seconds(tokens), cost};
  };
  EXPECT_THAT(engine->prefill_state()->prompts, ::testing::ElementsAre(PendingPrompt{1, 60}));
  EXPECT_EQ(engine->prefill_state()->token_budget, 24);
  engine->SetPrefillLevel(level(7));
  EXPECT_EQ(step(), std::pair(int64_t{7}, int64_t{53}));
  EXPECT_EQ(step(), std::pair(int64_t{7}, int64_t{46}));
  engine->SetPrefillLevel(std::nullopt);
  EXPECT_EQ(step(), std::pair(int64_t{24}, int64_t{22}));
  engine->SetPrefillLevel(level(100));
  EXPECT_EQ(step(), std::pair(int64_t{22}, int64_t{0}));
  EXPECT_EQ(out.tokens.size(), 1u);
}

}  // namespace
}  // namespace bfio::worker
