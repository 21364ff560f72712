// A chain whose head and stage compute on a GPU. Without a GPU the test is skipped; deploy/gpu_check runs it.
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "chains/pipeline/chain_backend.h"
#include "chains/pipeline/stage.h"
#include "chains/tests/testing/direct_outlet.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/decode_schedule.h"
#include "tests/testing/golden.h"
#include "worker/engine/cuda/device/cuda_engine.h"

namespace bfio::worker {
namespace {

DecodeOptions Options() {
  DecodeOptions options;
  options.limits = {6, 600, 1000};
  options.page_tokens = 16;
  options.step_tokens = 48;
  return options;
}

class OnAGpu : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const absl::Status status = CheckCudaDevice(0);
    if (status.ok()) return;
    // deploy/gpu_check sets this where a GPU must be present.
    if (std::getenv("BFIO_REQUIRE_GPU") != nullptr) FAIL() << status.message();
    GTEST_SKIP() << status.message();
  }
};

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
  auto head = head_source->Make(Options(), {{0, 1}, true}, {0, 1});
  ASSERT_TRUE(head.ok()) << head.status();
  auto part = stage_source->Make(Options(), {{1, layers - 1}, false}, {1, layers - 1});
  ASSERT_TRUE(part.ok()) << part.status();
  const auto fail = [](const absl::Status& why) { ADD_FAILURE() << why; };
  const auto returns = std::make_shared<Returns>(fail);
  const DecodeOptions options = Options();
  const BatchBounds bounds = BoundsOf(model->config().hidden, options);
  const auto stage = std::make_shared<Stage>(*std::move(part), bounds, true,
                                             std::make_unique<testing::DirectOutlet>(returns), fail);
  ChainBackendOptions chain;
  chain.micro_batches = 3;
  const auto engine = DecodeEngine::Create(
      options, std::make_unique<ChainBackend>(chain, *std::move(head),
                                              std::make_unique<testing::DirectOutlet>(stage), returns));
  ASSERT_TRUE(engine.ok()) << engine.status();
  const auto alone = MakeCudaEngine({Options(), 0}, *model, [](const std::string&) {});
  ASSERT_TRUE(alone.ok()) << alone.status();
  Rng rng(1);
  int equal = 0, all = 0;
  for (int round = 0; round < 20; ++round) {
    std::vector<SequenceRequest> requests;
    for (Handle handle = 1; handle <= 5; ++handle) {
      requests.push_back(testing::RandomRequest(rng, handle, model->config().vocab, 60, 20));
      ASSERT_TRUE((*engine)->Admit(requests.back()).ok());
    }
    auto streams = testing::RunSteps(**engine);
    for (const SequenceRequest& request : requests) {
      EXPECT_TRUE(streams[request.handle].finished);
      equal += streams[request.handle].tokens == testing::RunAlone(**alone, request).tokens;
      ++all;
    }
  }
  EXPECT_GE(equal, all * 8 / 10);
}

}  // namespace
}  // namespace bfio::worker
