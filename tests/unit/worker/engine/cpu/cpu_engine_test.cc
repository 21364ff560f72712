// The CPU engine on the tiny checkpoints of tests/golden.
#include "worker/engine/cpu/cpu_engine.h"

#include <filesystem>
#include <fstream>
#include <iterator>

#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "tests/testing/decode_schedule.h"
#include "tools/checkpoint/generate.h"
#include "worker/engine/cpu/part_memory.h"
#include "worker/engine/model/element.h"

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

TEST_P(CpuFamilyTest, TokensAndLogProbabilitiesDoNotDependOnTheSchedule) {
  for (const auto storage : {cpu::Storage::kFp32, cpu::Storage::kBf16}) {
    const auto weights = Load(GetParam(), storage);
    for (uint64_t seed = 1; seed <= 4; ++seed) {
      Rng rng(seed);
      const auto make = [&]() -> std::unique_ptr<Engine> {
        CpuOptions options = Options();
        options.threads = 1 + static_cast<int32_t>(rng.Below(3));
        options.decode.step_tokens = 1 + static_cast<int64_t>(rng.Below(60));
        return Make(options, weights);
      };
      EXPECT_GT(testing::RunSchedule(seed, make, {weights->config().vocab, 60, 20, 16}), 4);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, CpuFamilyTest,
                         ::testing::Values("llama", "llama_tied", "mistral", "qwen2", "qwen3"),
                         [](const auto& info) { return std::string(info.param); });

TEST(CpuEngineTest, HintsAreTheProbabilityOfTheTokensThatEnd) {
  const auto engine = Make(Options(), Load("llama"));
  SequenceRequest request = {.handle = 1, .prompt_length = 5, .max_new_tokens = 3, .ignore_eos = true};
  // Every token ends the request.
  for (uint32_t id = 0; id < 256; ++id) request.stop_token_ids.push_back(id);
  ASSERT_TRUE(engine->Admit(request).ok());
  StepOutput out;
  ASSERT_TRUE(engine->Step(out).ok());
  ASSERT_EQ(out.completion_hints.size(), 1u);
  EXPECT_NEAR(out.completion_hints[0], 1, 1e-6);
  EXPECT_EQ(out.finished.size(), 1u);
}

TEST(CpuEngineTest, MistralsBf16FileIsUsedWithoutACopy) {
  const auto mapped = Load("mistral"), widened = Load("mistral", cpu::Storage::kFp32);
  EXPECT_TRUE(mapped->layers()[0].q.bf16);
  EXPECT_FALSE(widened->layers()[0].q.bf16);
  EXPECT_EQ(2 * mapped->step_bytes(), widened->step_bytes());
  // Widening bf16 to fp32 is exact.
  SequenceRequest request = {.handle = 1, .prompt_length = 20, .max_new_tokens = 40, .ignore_eos = true};
  const auto narrow = testing::RunAlone(*Make(Options(), mapped), request);
  const auto wide = testing::RunAlone(*Make(Options(), widened), request);
  EXPECT_EQ(narrow.tokens, wide.tokens);
  EXPECT_EQ(narrow.log_probabilities, wide.log_probabilities);
}

TEST(CpuEngineTest, AnFp16CheckpointIsConvertedExactly) {
  const std::string folder = ::testing::TempDir() + "/halves";
  std::filesystem::remove_all(folder);
  ASSERT_TRUE(checkpoint::WriteRandomCheckpoint({.hidden = 32,
                                                 .intermediate = 48,
                                                 .layers = 1,
                                                 .heads = 2,
                                                 .kv_heads = 2,
                                                 .head_dim = 16,
                                                 .vocab = 64,
                                                 .max_positions = 128},
                                                folder)
                  .ok());
  // The same bits, said to be halves: small numbers.
  std::string bytes((std::istreambuf_iterator<char>(std::ifstream(folder + "/model.safetensors").rdbuf())),
                    {});
  absl::StrReplaceAll({{":\"BF16\"", ": \"F16\""}}, &bytes);
  std::ofstream(folder + "/model.safetensors") << bytes;
  auto model = LoadModel(folder);
  ASSERT_TRUE(model.ok()) << model.status();
  const std::shared_ptr<const Model> shared = *std::move(model);
  const auto weights = cpu::Weights::Make(shared, cpu::Storage::kAuto);
  const auto expect_same = [](const cpu::Matrix& matrix, const TensorView& halves) {
    ASSERT_FALSE(matrix.bf16);
    ASSERT_EQ(halves.dtype, DType::kF16);
    for (int64_t i = 0; i < halves.elements(); ++i)
      ASSERT_EQ(static_cast<const float*>(matrix.data)[i], ElementAt(halves, i)) << i;
  };
  expect_same(weights->embedding(), shared->embedding());
  expect_same(weights->lm_head(), shared->lm_head());
  expect_same(weights->layers()[0].down, shared->layers()[0].down);
  SequenceRequest request = {.handle = 1, .prompt_length = 5, .max_new_tokens = 4, .ignore_eos = true};
  EXPECT_EQ(testing::RunAlone(*Make(Options(), cpu::Weights::Make(shared, cpu::Storage::kAuto)), request)
                .tokens.size(),
            4u);
}

TEST(CpuEngineTest, MemoryIsLimitedByControlGroups) {
  const std::string root = ::testing::TempDir() + "/groups";
  std::filesystem::remove_all(root);
  const auto write = [&](const std::string& group, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root + group).parent_path());
    std::ofstream(root + group) << text;
  };
  constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(cpu::GroupLimit("0::/a/b\n", root), kNone);
  write("/a/b/memory.max", "max\n");
  EXPECT_EQ(cpu::GroupLimit("0::/a/b\n", root), kNone);
  write("/a/memory.max", "5000\n");
  EXPECT_EQ(cpu::GroupLimit("0::/a/b\n", root), 5000) << "of the group above";
  EXPECT_EQ(cpu::GroupLimit("0::/other\n", root), kNone);
  // In a container the process's own group is the root, whatever path it is given.
  write("/memory.max", "4000\n");
  EXPECT_EQ(cpu::GroupLimit("0::/\n", root), 4000);
  EXPECT_EQ(cpu::GroupLimit("0::/not/seen/here\n", root), 4000);
  // Control groups version 1, whose other controllers are ignored.
  write("/memory/c/memory.limit_in_bytes", "3000\n");
  EXPECT_EQ(cpu::GroupLimit("9:cpu,cpuacct:/c\n4:memory:/c\n0::/\n", root), 3000);
  EXPECT_EQ(cpu::GroupLimit("9:cpu,cpuacct:/c\n0::/\n", root), 4000);
  for (const char* const none : {"-1", "9223372036854775808", "1 GB", ""}) {
    write("/memory.max", none);
    EXPECT_EQ(cpu::GroupLimit("0::/\n", root), kNone) << none;
  }
  EXPECT_EQ(cpu::GroupLimit("nonsense\n::\n0::\n0::relative", root), kNone);
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
  EXPECT_THAT(message(options), HasSubstr("more than 2^31 - 1 pages"));
  // The size in bytes overflows 64 bits.
  options.decode.limits.kv_tokens = int64_t{1} << 55;
  options.decode.page_tokens = 1 << 30;
  EXPECT_THAT(message(options), HasSubstr("cannot allocate a KV cache of 8796093022207 MiB"));
  EXPECT_FALSE(LoadCpuWeights("tests/golden/nothing", cpu::Storage::kAuto).ok());
}

}  // namespace
}  // namespace bfio::worker
