// The CPU's forward pass against the logits that transformers computed in fp32 (tests/golden/README.md).
#include <cmath>

#include "gtest/gtest.h"
#include "tests/testing/golden.h"
#include "worker/engine/cpu/cpu_engine.h"

namespace bfio::worker {
namespace {

using testing::DistanceTo;
using testing::Golden;

constexpr int32_t kPageTokens = 32;
constexpr int32_t kPages = 8;

// Runs `tokens` in chunks of the given sizes (the last one repeats). Returns the logits of every row from
// `first` on.
std::vector<float> RunInChunks(cpu::Forward& forward, const std::vector<uint32_t>& tokens, int32_t first,
                               std::vector<int32_t> chunks) {
  std::vector<PageId> pages;
  for (PageId page = 0; page < kPages; ++page) pages.push_back(kPages - 1 - page);
  std::vector<float> logits;
  size_t chunk = 0;
  for (size_t at = 0; at < tokens.size(); ++chunk) {
    const auto size = std::min<size_t>(chunks[std::min(chunk, chunks.size() - 1)], tokens.size() - at);
    StepPlan plan;
    plan.Clear();
    plan.AddRun(0, static_cast<int64_t>(at), absl::MakeConstSpan(tokens).subspan(at, size), pages, false);
    for (int32_t row = 0; row < plan.rows(); ++row) {
      if (plan.positions[row] >= first) plan.logit_rows.push_back(row);
    }
    const auto step = forward.Run(plan);
    logits.insert(logits.end(), step.begin(), step.end());
    at += size;
  }
  return logits;
}

cpu::Forward MakeForward(const std::string& name, cpu::Storage storage, const cpu::Kernels& kernels,
                         int32_t threads) {
  auto weights = LoadCpuWeights(testing::GoldenFolder(name), storage);
  EXPECT_TRUE(weights.ok()) << weights.status();
  const ModelConfig& config = (*weights)->config();
  const cpu::KvShape shape = {config.layers, config.kv_heads, config.head_dim, kPageTokens, kPages};
  return cpu::Forward(*weights, *cpu::KvCache::Create(shape), kernels, threads, 128, 128);
}

class CpuGoldenTest : public ::testing::TestWithParam<const char*> {};

TEST_P(CpuGoldenTest, Fp32LogitsAreThoseOfTransformersOnEveryInstructionSet) {
  const Golden golden(GetParam());
  for (auto kernels = cpu::RunnableKernels(); *kernels != nullptr; ++kernels) {
    SCOPED_TRACE((*kernels)->name);
    cpu::Forward forward = MakeForward(GetParam(), cpu::Storage::kFp32, **kernels, 1);
    const std::vector<float> logits =
        RunInChunks(forward, golden.tokens, golden.prompt - 1, {golden.prompt, 1});
    const size_t vocab = golden.logits.size() / golden.rows.size();
    ASSERT_EQ(logits.size(), golden.top1.size() * vocab);
    const testing::GoldenDistance distance = DistanceTo(golden, logits);
    RecordProperty(std::string((*kernels)->name) + "_worst_row", std::to_string(distance.worst_row));
    EXPECT_LT(distance.worst_row, 1e-4);
    for (size_t row = 0; row < golden.top1.size(); ++row) {
      const float* const begin = logits.data() + row * vocab;
      EXPECT_EQ(std::max_element(begin, begin + vocab) - begin, golden.top1[row]) << "row " << row;
      double sum = 0;
      for (size_t id = 0; id < vocab; ++id) sum += std::exp(static_cast<double>(begin[id]));
      EXPECT_NEAR(std::log(sum), golden.logsumexp[row], 1e-4 * std::abs(golden.logsumexp[row]) + 1e-4);
    }
  }
}

TEST_P(CpuGoldenTest, Avx2AndAvx512AgreeToTheLastBit) {
  const auto first = cpu::RunnableKernels()[0], second = cpu::RunnableKernels()[1];
  if (second == nullptr || std::string(second->name) != "avx2") GTEST_SKIP() << "this processor has not both";
  const Golden golden(GetParam());
  for (const auto storage : {cpu::Storage::kFp32, cpu::Storage::kBf16}) {
    cpu::Forward a = MakeForward(GetParam(), storage, *first, 1),
                 b = MakeForward(GetParam(), storage, *second, 1);
    EXPECT_EQ(RunInChunks(a, golden.tokens, 0, {31}), RunInChunks(b, golden.tokens, 0, {31}));
  }
}

// Here bf16 is only the storage format; transformers in bf16 also rounds every activation.
TEST_P(CpuGoldenTest, Bf16StorageIsCloserToFp32ThanTransformersBf16) {
  const Golden golden(GetParam());
  cpu::Forward forward = MakeForward(GetParam(), cpu::Storage::kBf16, cpu::BestKernels(), 2);
  const std::vector<float> logits =
      RunInChunks(forward, golden.tokens, golden.prompt - 1, {golden.prompt, 1});
  const double error = DistanceTo(golden, logits).relative_l2;
  RecordProperty("relative_l2", std::to_string(error));
  EXPECT_LT(error, golden.transformers_bf16);
  EXPECT_GT(error, 0) << "it was fp32";
}

INSTANTIATE_TEST_SUITE_P(Families, CpuGoldenTest,
                         ::testing::Values("llama", "llama_tied", "mistral", "qwen2", "qwen3"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace bfio::worker
