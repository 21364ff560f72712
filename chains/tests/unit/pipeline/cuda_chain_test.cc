// A chain whose head and stage compute on a GPU. Without a GPU the test is skipped; deploy/gpu_check runs it.

#include "chains/tests/testing/local_chain.h"
#include "gtest/gtest.h"
#include "tests/testing/cuda/on_a_gpu.h"
#include "tests/testing/golden.h"
#include "worker/engine/cuda/device/cuda_engine.h"

namespace bfio::worker {
namespace {

DecodeOptions Options() {
  return {.limits = {6, 600, 1000}, .page_tokens = 16, .step_tokens = 48};
}

using testing::OnAGpu;
INSTANTIATE_TEST_SUITE_P(Families, OnAGpu,
                         ::testing::Values("llama", "llama_tied", "mistral", "qwen2", "qwen3"),
                         [](const auto& info) { return std::string(info.param); });

// A head and a stage on one GPU, each with a thread and a CUDA stream of its own.
TEST_P(OnAGpu, AChainOfTwoPartsGivesTheWholeModelsTokens) {
  auto loaded = LoadModel(testing::GoldenFolder(GetParam()));
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  const std::shared_ptr<const Model> model = *std::move(loaded);
  const auto layers = static_cast<int32_t>(model->config().layers);
  const auto make_source = [&] {
    auto source = MakeCudaParts(0, model, [](const std::string&) {});
    EXPECT_TRUE(source.ok()) << source.status();
    return *std::move(source);
  };
  const auto head_source = make_source(), stage_source = make_source();
  ChainBackendOptions chain;
  chain.micro_batches = 3;
  const auto engine = testing::MakeLocalChain(
      {1, layers}, model->config().hidden, chain, Options(), [&](int32_t first, int32_t end, bool head) {
        const BlockRange blocks = {first, end - first};
        auto part = (head ? head_source : stage_source)->Make(Options(), {blocks, head}, blocks);
        EXPECT_TRUE(part.ok()) << part.status();
        return *std::move(part);
      });
  const auto alone = MakeCudaEngine({Options(), 0}, *model, [](const std::string&) {});
  ASSERT_TRUE(alone.ok()) << alone.status();
  testing::ExpectTokensOfAloneInBatches(*engine, **alone, model->config().vocab);
}

}  // namespace
}  // namespace bfio::worker
