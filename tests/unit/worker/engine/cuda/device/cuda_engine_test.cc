// The CUDA engine as a program creates it: its errors without CUDA, and its results with it. Without a GPU
// the second part is skipped; deploy/gpu_check runs it.
#include "worker/engine/cuda/device/cuda_engine.h"
#include "common/base/status_macros.h"

#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/decode_schedule.h"
#include "tests/testing/golden.h"
#ifdef BFIO_TEST_CUDA
#include "tests/testing/cuda_logits.h"
#include "worker/engine/cuda/device/cuda_device_ops.h"
#endif

namespace bfio::worker {
namespace {

using ::testing::HasSubstr;

DecodeOptions Options() {
  DecodeOptions options;
  options.limits = {6, 600, 1000};
  options.page_tokens = 16;
  options.step_tokens = 48;
  return options;
}

absl::StatusOr<std::unique_ptr<DecodeEngine>> MakeEngine(const std::string& name) {
  BFIO_ASSIGN_OR_RETURN(auto model, LoadModel(testing::GoldenFolder(name)));
  return MakeCudaEngine({Options(), 0}, *model, [](const std::string&) {});
}

TEST(CudaEngineTest, WithoutCudaOrAGpuTheErrorSaysSo) {
  const absl::Status status = CheckCudaDevice(0);
  if (status.ok()) {
    EXPECT_THAT(std::string(CheckCudaDevice(1000).message()), HasSubstr("no CUDA device 1000"));
    return;
  }
  EXPECT_EQ(MakeEngine("llama").status(), status);
#ifdef BFIO_TEST_CUDA
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("no CUDA device"));
#else
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("built without CUDA"));
#endif
}

#ifdef BFIO_TEST_CUDA
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

// A worker's defaults, with as many KV tokens as fit: with such a small model that is the whole default.
TEST_P(OnAGpu, StartsWithDefaults) {
  auto model = LoadModel(testing::GoldenFolder(GetParam()));
  ASSERT_TRUE(model.ok()) << model.status();
  CudaOptions options;
  options.decode.limits = {.slots = 72, .kv_tokens = 1 << 20, .max_sequence_tokens = 1 << 18};
  options.fit_kv = true;
  const auto engine =
      MakeCudaEngine(options, **model, [](const std::string& line) { std::printf("%s\n", line.c_str()); });
  ASSERT_TRUE(engine.ok()) << engine.status();
  EXPECT_EQ((*engine)->limits().kv_tokens, 1 << 20);
  StepOutput out;
  EXPECT_TRUE((*engine)->Step(out).ok());
}

TEST_P(OnAGpu, LogitsAreWithinBf16OfTransformersFp32) {
  const testing::Golden golden(GetParam());
  auto model = LoadModel(testing::GoldenFolder(GetParam()));
  ASSERT_TRUE(model.ok()) << model.status();
  auto ops = gpu::CudaDeviceOps::Create(0);
  ASSERT_TRUE(ops.ok()) << ops.status();
  const gpu::Progress quiet = [](const std::string&) {};
  auto weights = gpu::UploadWeights(**model, **ops, quiet);
  ASSERT_TRUE(weights.ok()) << weights.status();
  auto backend =
      gpu::CudaBackend::Create(Options(), (*model)->config(), *std::move(ops), *std::move(weights), quiet);
  ASSERT_TRUE(backend.ok()) << backend.status();
  const auto logits = testing::RunInChunks(**backend, golden.tokens, golden.prompt - 1, {golden.prompt, 1});
  ASSERT_EQ(logits.size(), golden.top1.size() * golden.vocab());
  const testing::GoldenDistance distance = DistanceTo(golden, logits);
  RecordProperty("relative_l2", std::to_string(distance.relative_l2));
  std::printf("%s: relative L2 %.4f, transformers' bf16 %.4f\n", GetParam(), distance.relative_l2,
              golden.transformers_bf16);
  EXPECT_LT(distance.relative_l2, 2 * golden.transformers_bf16);
  EXPECT_LT(distance.largest, 2 * golden.transformers_bf16_max);
  for (size_t row = 0; row < golden.top1.size(); ++row) {
    if (golden.margin[row] <= 2 * distance.largest) continue;
    const float* const begin = logits.data() + row * golden.vocab();
    EXPECT_EQ(std::max_element(begin, begin + golden.vocab()) - begin, golden.top1[row]) << "row " << row;
  }
}

// Products of different buckets differ by rounding, so a close draw may differ in a batch: most requests must
// be equal in every token, and all must be complete.
TEST_P(OnAGpu, TokensInABatchAreThoseAlone) {
  const auto vocab = static_cast<int64_t>(testing::Golden(GetParam()).vocab());
  const auto alone = MakeEngine(GetParam()), together = MakeEngine(GetParam());
  ASSERT_TRUE(alone.ok()) << alone.status();
  ASSERT_TRUE(together.ok()) << together.status();
  Rng rng(1);
  int equal = 0, all = 0;
  for (int round = 0; round < 20; ++round) {
    std::vector<SequenceRequest> requests;
    for (Handle handle = 1; handle <= 5; ++handle) {
      requests.push_back(testing::RandomRequest(rng, handle, vocab, 60, 20));
      ASSERT_TRUE((*together)->Admit(requests.back()).ok());
    }
    auto streams = testing::RunSteps(**together);
    for (const SequenceRequest& request : requests) {
      EXPECT_TRUE(streams[request.handle].finished);
      equal += streams[request.handle].tokens == testing::RunAlone(**alone, request).tokens;
      ++all;
    }
  }
  EXPECT_GE(equal, all * 8 / 10);
  EXPECT_TRUE((*together)->AuditKv().ok());
}

#endif

}  // namespace
}  // namespace bfio::worker
