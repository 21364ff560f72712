// The CUDA engine as a program creates it: its errors without CUDA, and its results with it. Without a GPU
// the second part is skipped; deploy/gpu_check runs it.
#include "worker/engine/cuda/device/cuda_engine.h"
#include "common/base/status_macros.h"

#include "gmock/gmock.h"
#include "tests/testing/golden.h"
#ifdef BFIO_TEST_CUDA
#include "tests/testing/cuda/on_a_gpu.h"
#include "tests/testing/cuda_logits.h"
#include "worker/engine/cuda/device/cuda_device_ops.h"
#endif

namespace bfio::worker {
namespace {

using ::testing::HasSubstr;

DecodeOptions Options() {
  return {.limits = {6, 600, 1000}, .page_tokens = 16, .step_tokens = 48};
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
using testing::OnAGpu;
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
  // The sums' order differs from the emulator's.
  testing::ExpectWithinBf16(golden, logits, 2);
}

TEST_P(OnAGpu, TokensInABatchAreThoseAlone) {
  const auto alone = MakeEngine(GetParam()), together = MakeEngine(GetParam());
  ASSERT_TRUE(alone.ok()) << alone.status();
  ASSERT_TRUE(together.ok()) << together.status();
  testing::ExpectTokensOfAloneInBatches(**together, **alone,
                                        static_cast<int64_t>(testing::Golden(GetParam()).vocab()));
  EXPECT_TRUE((*together)->AuditKv().ok());
}

#endif

}  // namespace
}  // namespace bfio::worker
