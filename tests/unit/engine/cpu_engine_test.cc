// The CPU engine on the tiny checkpoints of tests/golden.
#include "worker/engine/cpu/cpu_engine.h"

#include <map>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/decode_schedule.h"

namespace bfio::worker {
namespace {

using ::testing::HasSubstr;

std::shared_ptr<const cpu::Weights> Load(const std::string& name,
                                         cpu::Storage storage = cpu::Storage::kAuto) {
  auto weights = LoadCpuWeights("tests/golden/" + name, storage);
  EXPECT_TRUE(weights.ok()) << weights.status();
  return *std::move(weights);
}

CpuOptions Options() {
  CpuOptions options;
  options.decode.limits = {6, 600, 1000};
  options.decode.step_tokens = 40;
  return options;
}

std::unique_ptr<DecodeEngine> Make(const CpuOptions& options, std::shared_ptr<const cpu::Weights> weights) {
  auto engine = MakeCpuEngine(options, std::move(weights));
  EXPECT_TRUE(engine.ok()) << engine.status();
  return *std::move(engine);
}

class CpuFamilyTest : public ::testing::TestWithParam<const char*> {};

TEST_P(CpuFamilyTest, TokensAndLogProbabilitiesAreThoseOfTheRequestAloneOnRandomSchedules) {
  for (const auto storage : {cpu::Storage::kFp32, cpu::Storage::kBf16}) {
    const auto weights = Load(GetParam(), storage);
    for (uint64_t seed = 1; seed <= 4; ++seed) {
      Rng rng(seed);
      const auto make = [&]() -> std::unique_ptr<Engine> {
        CpuOptions options = Options();
        options.threads = 1 + static_cast<int32_t>(rng.Below(3));
        options.kv = storage;
        options.decode.step_tokens = 1 + static_cast<int64_t>(rng.Below(60));
        if (seed > 2) {
          // The two engines of a run differ in what their steps contain; prompts that come whole fit.
          options.decode.scheduler = SchedulerNames()[rng.Below(4)];
          options.decode.order = static_cast<BatchOrder>(rng.Below(3));
          options.decode.limits.max_sequence_tokens = 80;
          options.decode.step_tokens += 80;
        }
        return Make(options, weights);
      };
      EXPECT_GT(testing::RunSchedule(seed, make, {weights->config().vocab, 60, 20, 16}), 4);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, CpuFamilyTest,
                         ::testing::Values("llama", "llama_tied", "mistral", "qwen2", "qwen3"),
                         [](const auto& info) { return std::string(info.param); });

TEST(CpuEngineTest, GreedyLogProbabilitiesAreThoseOfTheLargestLogits) {
  const auto engine = Make(Options(), Load("llama"));
  SequenceRequest request;
  request.handle = 1;
  request.prompt = {1, 2, 3};
  request.prompt_length = 3;
  request.max_new_tokens = 8;
  request.ignore_eos = true;
  const auto stream = testing::RunAlone(*engine, request);
  ASSERT_EQ(stream.tokens.size(), 8u);
  for (const float log_probability : stream.log_probabilities) {
    EXPECT_LT(log_probability, 0);
    EXPECT_GT(log_probability, std::log(1.0 / 256)) << "the most likely of 256 is likelier than chance";
  }
}

TEST(CpuEngineTest, HintsAreTheProbabilityOfTheTokensThatEnd) {
  const auto engine = Make(Options(), Load("llama"));
  SequenceRequest request;
  request.handle = 1;
  request.prompt_length = 5;
  request.max_new_tokens = 3;
  request.ignore_eos = true;
  // Every token ends it.
  for (uint32_t id = 0; id < 256; ++id) request.stop_token_ids.push_back(id);
  ASSERT_TRUE(engine->Admit(request).ok());
  StepOutput out;
  ASSERT_TRUE(engine->Step(out).ok());
  ASSERT_EQ(out.completion_hints.size(), 1u);
  EXPECT_NEAR(out.completion_hints[0], 1, 1e-6);
  EXPECT_EQ(out.finished.size(), 1u);
}

TEST(CpuEngineTest, TheModelLimitsTheSequenceAndTheCacheTheRequests) {
  const auto engine = Make(Options(), Load("llama"));
  EXPECT_EQ(engine->limits().max_sequence_tokens, 512);
  SequenceRequest request;
  request.handle = 1;
  request.prompt_length = 300;
  request.max_new_tokens = 100;
  ASSERT_TRUE(engine->Admit(request).ok());
  request.handle = 2;
  EXPECT_EQ(engine->Admit(request).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(engine->Cancel(1));
  EXPECT_TRUE(engine->Admit(request).ok());
}

TEST(CpuEngineTest, MistralsBf16FileIsUsedWhereItIsMapped) {
  const auto mapped = Load("mistral"), widened = Load("mistral", cpu::Storage::kFp32);
  EXPECT_TRUE(mapped->layers()[0].q.bf16);
  EXPECT_FALSE(widened->layers()[0].q.bf16);
  EXPECT_EQ(2 * mapped->step_bytes(), widened->step_bytes());
}

// Widening is exact.
TEST(CpuEngineTest, ABf16CheckpointGivesTheSameTokensInFp32) {
  SequenceRequest request;
  request.handle = 1;
  request.prompt_length = 20;
  request.max_new_tokens = 40;
  request.ignore_eos = true;
  const auto mapped = testing::RunAlone(*Make(Options(), Load("mistral")), request);
  const auto widened = testing::RunAlone(*Make(Options(), Load("mistral", cpu::Storage::kFp32)), request);
  EXPECT_EQ(mapped.tokens, widened.tokens);
  EXPECT_EQ(mapped.log_probabilities, widened.log_probabilities);
}

TEST(CpuEngineTest, BadOptionsAndCheckpointsAreRefusedByName) {
  const auto weights = Load("llama");
  const auto message = [&](const CpuOptions& options) {
    return std::string(MakeCpuEngine(options, weights).status().message());
  };
  CpuOptions options = Options();
  options.decode.page_tokens = 24;
  EXPECT_THAT(message(options), HasSubstr("page_size must be a multiple of 16, not 24"));
  options = Options();
  options.threads = 0;
  EXPECT_THAT(message(options), HasSubstr("cpu_threads must be in 1..256, not 0"));
  options = Options();
  options.decode.limits.kv_tokens = int64_t{1} << 45;
  EXPECT_FALSE(MakeCpuEngine(options, weights).ok());
  EXPECT_FALSE(LoadCpuWeights("tests/golden/nothing", cpu::Storage::kAuto).ok());
  EXPECT_FALSE(cpu::ParseStorage("fp64").ok());
}

}  // namespace
}  // namespace bfio::worker
