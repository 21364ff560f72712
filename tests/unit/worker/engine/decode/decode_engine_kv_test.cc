// KV memory of a decode engine: reserved in full or on demand, preemption and replay.
#include <map>
#include <vector>

#include "gmock/gmock.h"
#include "tests/testing/decode_schedule.h"
#include "tests/unit/worker/engine/decode/hash_engine.h"
#include "worker/engine/decode/decode_engine.h"

namespace bfio::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(DecodeEngineTest, KvIsReservedInFullSoRunningRequestsNeverRunOut) {
  const auto engine = Make();
  ASSERT_TRUE(engine->Admit(Request(1, 100, 100)).ok());
  ASSERT_TRUE(engine->Admit(Request(2, 100, 100)).ok());
  EXPECT_EQ(engine->free_kv_tokens(), 2);
  const absl::Status full = engine->Admit(Request(3, 2, 2));
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(full.message()), HasSubstr("needs 3 KV tokens, 2 are free"));
  ASSERT_TRUE(engine->Admit(Request(3, 2, 1)).ok());
  EXPECT_EQ(engine->free_kv_tokens(), 0);
  const auto streams = testing::RunSteps(*engine);
  EXPECT_EQ(streams.at(1).tokens.size(), 100u);
  EXPECT_EQ(streams.at(2).tokens.size(), 100u);
  EXPECT_EQ(streams.at(3).tokens.size(), 1u);
  EXPECT_EQ(engine->free_kv_tokens(), 400);
}

TEST(DecodeEngineTest, PreemptedRequestsGenerateTheSameTokens) {
  int preemptions = 0;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    Rng rng(seed);
    DecodeOptions options = Options();
    options.limits.kv_tokens = 70 + static_cast<int64_t>(rng.Below(60));  // a request needs at most 64
    options.page_tokens = 1 + static_cast<int32_t>(rng.Below(20));
    options.step_tokens = 1 + static_cast<int64_t>(rng.Below(60));
    testing::ScheduleShape shape{kVocab};
    shape.on_demand = seed % 4 == 0 ? 0.5 : 1;
    shape.preemptions = &preemptions;
    EXPECT_GT(testing::RunSchedule(
                  seed, [&] { return Make(options); }, shape),
              8);
  }
  EXPECT_GT(preemptions, 100);
}

TEST(DecodeEngineTest, PreemptedRequestsGenerateTheSameTokensWithPlansUnderWay) {
  int preemptions = 0;
  for (uint64_t seed = 1; seed <= 80; ++seed) {
    Rng rng(seed);
    DecodeOptions options = Options();
    options.scheduler = SchedulerNames()[seed % SchedulerNames().size()];
    options.limits.kv_tokens = 70 + static_cast<int64_t>(rng.Below(60));
    options.page_tokens = 1 + static_cast<int32_t>(rng.Below(20));
    options.step_tokens = 64 + static_cast<int64_t>(rng.Below(60));
    options.limits.max_sequence_tokens = 64;
    testing::ScheduleShape shape{kVocab};
    shape.on_demand = seed % 4 == 0 ? 0.5 : 1;
    shape.preemptions = &preemptions;
    SCOPED_TRACE(options.scheduler);
    EXPECT_GT(testing::RunSchedule(
                  seed, [&] { return MakePipelined(options); }, shape),
              5);
  }
  EXPECT_GT(preemptions, 100);
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

}  // namespace
}  // namespace bfio::worker
