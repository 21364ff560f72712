// KV memory of a decode engine: how much fits, on demand, preemption and replay.
#include "gmock/gmock.h"
#include "tests/testing/decode_schedule.h"
#include "tests/unit/worker/engine/decode/hash_engine.h"
#include "worker/engine/decode/decode_engine.h"
#include "worker/engine/decode/kv_fit.h"

namespace bfio::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(DecodeEngineTest, PreemptedRequestsGenerateTheSameTokens) {
  for (const bool pipelined : {false, true}) {
    int preemptions = 0;
    for (uint64_t seed = 1; seed <= (pipelined ? 80 : 40); ++seed) {
      Rng rng(seed);
      DecodeOptions options = Options();
      if (pipelined) options.scheduler = SchedulerNames()[seed % SchedulerNames().size()];
      options.limits.kv_tokens = 70 + static_cast<int64_t>(rng.Below(60));
      options.limits.max_sequence_tokens = 64;
      options.page_tokens = 1 + static_cast<int32_t>(rng.Below(20));
      options.step_tokens = (pipelined ? 64 : 1) + static_cast<int64_t>(rng.Below(60));
      SCOPED_TRACE(options.scheduler);
      const auto make = [&] { return pipelined ? MakePipelined(options) : Make(options); };
      EXPECT_GT(testing::RunSchedule(
                    seed, make,
                    {.vocab = kVocab, .on_demand = seed % 4 == 0 ? 0.5 : 1, .preemptions = &preemptions}),
                5);
    }
    EXPECT_GT(preemptions, 100);
  }
}

// A token that is generated again needs no KV beyond the prompt, whether it is being drawn or not.
TEST(DecodeEngineTest, ASilentReplayTakesNoKvFromOthersWithPlansUnderWay) {
  const SequenceRequest request = Request(1, 10, 14);
  const std::vector<uint32_t> whole = testing::RunAlone(*Make(), request).tokens;
  DecodeOptions options = Options();
  // Its decodes wait for whole prompts.
  options.scheduler = "vllm_v0";
  options.step_tokens = options.limits.max_sequence_tokens = 64;
  options.limits.kv_tokens = 20 + 13;
  const auto engine = MakePipelined(options);
  SequenceRequest replay = testing::Replay(request, 2, {whole.begin(), whole.begin() + 10});
  SequenceRequest other = Request(3, 12, 2);
  replay.kv_on_demand = other.kv_on_demand = true;
  StepOutput out;
  ASSERT_TRUE(engine->Admit(replay).ok());
  ASSERT_TRUE(engine->Step(out).ok());
  EXPECT_EQ(engine->free_kv_tokens(), 13);
  ASSERT_TRUE(engine->Admit(other).ok());
  auto streams = testing::RunSteps(*engine);
  EXPECT_EQ(streams[3].tokens.size(), 2u);
  EXPECT_EQ(streams[2].tokens, std::vector<uint32_t>(whole.begin() + 10, whole.end()));
}

TEST(DecodeEngineTest, TheYoungestOnDemandRequestIsPreempted) {
  DecodeOptions options = Options();
  options.limits.kv_tokens = 60;
  options.step_tokens = 64;
  const auto engine = Make(options);
  const auto on_demand = [](Handle handle, int64_t prompt, int64_t output) {
    SequenceRequest request = Request(handle, prompt, output);
    request.kv_on_demand = true;
    return request;
  };
  ASSERT_TRUE(engine->Admit(on_demand(1, 10, 40)).ok());
  ASSERT_TRUE(engine->Admit(on_demand(2, 10, 40)).ok());
  ASSERT_TRUE(engine->Admit(Request(3, 10, 11)).ok());
  EXPECT_EQ(engine->free_kv_tokens(), 60 - 10 - 10 - 20);
  EXPECT_EQ(engine->Admit(on_demand(4, 21, 5)).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(engine->Admit(on_demand(5, 30, 40)).code(), absl::StatusCode::kInvalidArgument)
      << "it could never end";
  StepOutput out;
  for (int step = 1; step <= 11; ++step) {
    ASSERT_TRUE(engine->Step(out).ok());
    EXPECT_THAT(out.preempted, IsEmpty()) << "10 + 10 + 20 tokens";
    EXPECT_EQ(engine->free_kv_tokens(), step < 11 ? 20 - 2 * (step - 1) : 20);
  }
  ASSERT_TRUE(engine->Admit(Request(6, 10, 5)).ok());
  for (int step = 12; step <= 14; ++step) {
    ASSERT_TRUE(engine->Step(out).ok());
    EXPECT_THAT(out.preempted, IsEmpty());
  }
  ASSERT_TRUE(engine->Step(out).ok());
  EXPECT_THAT(out.preempted, ElementsAre(2)) << "24 + 24 + 14 tokens; 6 is younger, but has what it needs";
  EXPECT_EQ(out.load_tokens, 24 + 13);
  EXPECT_EQ(out.tokens.size(), 2u);
  EXPECT_EQ(engine->free_kv_tokens(), 60 - 24 - 14);
  EXPECT_TRUE(engine->AuditKv().ok());
}

DecodeOptions Asking(int64_t tokens) {
  return {.limits = {4, tokens, 1000}, .page_tokens = 16};
}

int64_t TenEachAnd100(int64_t tokens) {
  return 10 * tokens + 100;
}

TEST(KvFitTest, TheLargestFittingNumberIsExact) {
  EXPECT_EQ(MostKvTokens(1000, 10'100, TenEachAnd100), 1000);
  EXPECT_EQ(MostKvTokens(1000, 10'099, TenEachAnd100), 999);
  EXPECT_EQ(MostKvTokens(int64_t{1} << 40, 10'099, TenEachAnd100), 999);
  EXPECT_EQ(MostKvTokens(1000, 110, TenEachAnd100), 1);
  EXPECT_EQ(MostKvTokens(1000, 109, TenEachAnd100), 0);
  EXPECT_EQ(MostKvTokens(1000, -1, TenEachAnd100), 0);
  const auto huge = [](int64_t) { return std::numeric_limits<int64_t>::max(); };
  EXPECT_EQ(MostKvTokens(int64_t{1} << 40, 1 << 20, huge), 0);
}

TEST(KvFitTest, GivesTheRequestedOrTheFittingNumberOrNothing) {
  for (const bool fewer : {false, true}) {
    EXPECT_EQ(FitKvTokens(Asking(1000), fewer, 10'100, TenEachAnd100), 1000);
    // Fewer than a page per slot, but all that was requested.
    EXPECT_EQ(FitKvTokens(Asking(10), fewer, 10'100, TenEachAnd100), 10);
  }
  EXPECT_EQ(FitKvTokens(Asking(1000), false, 10'099, TenEachAnd100), std::nullopt);
  EXPECT_EQ(FitKvTokens(Asking(1000), true, 10'099, TenEachAnd100), 999);
  // The minimum is a page of 16 tokens for each of 4 slots.
  EXPECT_EQ(FitKvTokens(Asking(1000), true, 740, TenEachAnd100), 64);
  EXPECT_EQ(FitKvTokens(Asking(1000), true, 739, TenEachAnd100), std::nullopt);
}

}  // namespace
}  // namespace bfio::worker
