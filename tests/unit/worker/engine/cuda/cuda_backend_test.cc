// The whole CUDA backend on the tiny checkpoints of tests/golden, without a GPU: its kernels run under the
// emulator, its matrix products are plain loops (tests/testing/emulated_device_ops.h). Not covered: CUDA
// itself and cuBLASLt.
#include "worker/engine/cuda/cuda_backend.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "gmock/gmock.h"
#include "simt/machine.h"
#include "tests/testing/cuda_logits.h"
#include "tests/testing/decode_schedule.h"
#include "tests/testing/emulated_device_ops.h"
#include "tests/testing/golden.h"
#include "worker/engine/cuda/cuda_parts.h"
#include "worker/engine/model/model.h"

namespace bfio::worker::gpu {
namespace {

using testing::EmulatedDevice;
using testing::Golden;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::RunInChunks;

DecodeOptions Options() {
  return {.limits = {6, 600, 1000}, .page_tokens = 16, .step_tokens = 48};
}

std::unique_ptr<Model> Load(const std::string& name) {
  auto model = LoadModel(testing::GoldenFolder(name));
  EXPECT_TRUE(model.ok()) << model.status();
  return *std::move(model);
}

absl::StatusOr<std::unique_ptr<CudaBackend>> TryMake(const std::string& name, const DecodeOptions& options,
                                                     EmulatedDevice& device) {
  const std::unique_ptr<Model> model = Load(name);
  auto ops = std::make_unique<testing::EmulatedDeviceOps>(device);
  const Progress quiet = [](const std::string&) {};
  BFIO_ASSIGN_OR_RETURN(auto weights, UploadWeights(*model, *ops, quiet));
  return CudaBackend::Create(options, model->config(), std::move(ops), std::move(weights), quiet);
}

std::unique_ptr<CudaBackend> Make(const std::string& name, const DecodeOptions& options,
                                  EmulatedDevice& device) {
  auto backend = TryMake(name, options, device);
  EXPECT_TRUE(backend.ok()) << backend.status();
  return *std::move(backend);
}

std::unique_ptr<Engine> MakeEngine(const std::string& name, const DecodeOptions& options,
                                   EmulatedDevice& device) {
  auto engine = DecodeEngine::Create(options, Make(name, options, device));
  EXPECT_TRUE(engine.ok()) << engine.status();
  return *std::move(engine);
}

class CudaBackendFamilyTest : public ::testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(Families, CudaBackendFamilyTest,
                         ::testing::Values("llama", "llama_tied", "mistral", "qwen2", "qwen3"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(CudaBackendFamilyTest, LogitsAreWithinBf16OfTransformersFp32) {
  const Golden golden(GetParam());
  EmulatedDevice device;
  const auto backend = Make(GetParam(), Options(), device);
  const std::vector<float> logits =
      RunInChunks(*backend, golden.tokens, golden.prompt - 1, {golden.prompt, 1});
  testing::ExpectWithinBf16(golden, logits, 1);
}

// Bit-equal here: the emulator's products do not depend on the bucket of rows.
TEST_P(CudaBackendFamilyTest, TokensDoNotDependOnTheScheduleOrTheOrderOfThreads) {
  const int64_t vocab = static_cast<int64_t>(Golden(GetParam()).vocab());
  const uint64_t seed = 1;
  Rng rng(seed);
  std::vector<std::unique_ptr<EmulatedDevice>> devices;
  const auto make = [&]() -> std::unique_ptr<Engine> {
    DecodeOptions options = Options();
    options.step_tokens = 1 + static_cast<int64_t>(rng.Below(60));
    options.page_tokens = 16 << rng.Below(3);
    // Alone with threads in one order, in batches in the other.
    simt::SetOrder(devices.empty() ? simt::Order::kForward : simt::Order::kReverse);
    devices.push_back(std::make_unique<EmulatedDevice>());
    return MakeEngine(GetParam(), options, *devices.back());
  };
  EXPECT_GT(testing::RunSchedule(seed, make, {vocab, 60, 12, 7}), 2);
  simt::SetOrder(simt::Order::kForward);
}

// --- tests on one family ---

SequenceRequest Request(Handle handle, int64_t prompt, int64_t output) {
  return {.handle = handle, .prompt_length = prompt, .max_new_tokens = output, .ignore_eos = true};
}

TEST(CudaBackendTest, DrawsAgreeWithTheHostSampler) {
  EmulatedDevice device;
  const auto backend = Make("llama", Options(), device);
  const auto vocab = static_cast<size_t>(backend->facts().vocab);
  Rng rng(7);
  const std::vector<uint32_t> ends = {3, 250, 3, 100000};
  Sampler sampler;
  int different = 0;
  for (int step = 0; step < 30; ++step) {
    StepPlan plan;
    plan.Clear();
    std::vector<worker::Draw> draws;
    const std::vector<PageId> pages[3] = {{0}, {1}, {2}};
    for (int i = 0; i < 3; ++i) {
      const auto token = static_cast<uint32_t>(rng.Below(vocab));
      plan.AddRun(i, 0, {&token, 1}, pages[i], true);
      worker::Draw draw;
      draw.sampling.temperature = i == 0 ? 0 : 0.5 + rng.Uniform();
      draw.sampling.top_p = rng.Below(2) == 0 ? 1 : rng.Uniform();
      if (rng.Below(2) == 0) draw.sampling.top_k = 1 + static_cast<int32_t>(rng.Below(30));
      draw.sampling.seed = rng.Next();
      draw.index = step;
      draw.ends = ends;
      draws.push_back(draw);
    }
    std::vector<Drawn> drawn(3);
    ASSERT_TRUE(backend->Run(plan, draws, absl::MakeSpan(drawn)).ok());
    for (int i = 0; i < 3; ++i) {
      const auto want = sampler.Pick({backend->forward().logits() + i * vocab, vocab}, draws[i]);
      ASSERT_TRUE(want.ok());
      different += drawn[i].id != want->id;
      if (drawn[i].id == want->id) {
        EXPECT_NEAR(drawn[i].log_probability, want->log_probability, 2e-5);
      }
      EXPECT_NEAR(drawn[i].end_probability, want->end_probability, 1e-5);
    }
  }
  EXPECT_LE(different, 1);
}

TEST(CudaBackendTest, AStepAllocatesNothingAndReplaysOneGraph) {
  EmulatedDevice device;
  const auto engine = MakeEngine("llama", Options(), device);
  const int allocations = device.allocations;
  for (Handle handle = 1; handle <= 5; ++handle) ASSERT_TRUE(engine->Admit(Request(handle, 50, 9)).ok());
  StepOutput out;
  int steps = 0;
  for (; engine->active() > 0; ++steps) ASSERT_TRUE(engine->Step(out).ok());
  EXPECT_EQ(device.allocations, allocations);
  EXPECT_EQ(device.replays, steps);
  ASSERT_TRUE(engine->Step(out).ok()) << "an empty step";
  EXPECT_EQ(device.replays, steps);
}

TEST(CudaBackendTest, ADeviceErrorEndsTheEngine) {
  EmulatedDevice device;
  const auto backend = Make("llama", Options(), device);
  auto engine = DecodeEngine::Create(Options(), Make("llama", Options(), device));
  ASSERT_TRUE((*engine)->Admit(Request(1, 5, 9)).ok());
  StepOutput out;
  ASSERT_TRUE((*engine)->Step(out).ok());
  device.failing_wait = 0;
  const absl::Status first = (*engine)->Step(out);
  EXPECT_EQ(first.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(first.message()), HasSubstr("cudaEventQuery"));
  device.failing_wait = -1;
  EXPECT_EQ((*engine)->Step(out), first) << "it works again, and must not";
}

TEST(CudaBackendTest, UnsupportedShapesAreRefusedByName) {
  EmulatedDevice device;
  DecodeOptions options = Options();
  options.page_tokens = 48;
  const auto backend = TryMake("llama", options, device);
  EXPECT_EQ(backend.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(backend.status().message()), HasSubstr("pages of 48 tokens"));
}

// --- engine on device ---

// How many KV tokens an engine allocates on emulated devices of different sizes.

constexpr int64_t kMiB = 1 << 20;

// A worker's defaults except for slots and rows, with which the emulator would be slow.
DecodeOptions LikeDefaults(int64_t kv_tokens = 1 << 20) {
  DecodeOptions options;
  options.limits = {6, kv_tokens, 1 << 18};
  options.step_tokens = 48;
  return options;
}

class FitOnDeviceTest : public ::testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<DecodeEngine>> Make(const DecodeOptions& options, bool fit_kv) {
    auto model = LoadModel(testing::GoldenFolder("llama"));
    EXPECT_TRUE(model.ok()) << model.status();
    auto ops = std::make_unique<testing::EmulatedDeviceOps>(device);
    lines.clear();
    return MakeEngineOn(std::move(ops), options, fit_kv, **model,
                        [this](const std::string& line) { lines.push_back(line); });
  }

  EmulatedDevice device;
  std::vector<std::string> lines;
};

TEST_F(FitOnDeviceTest, WithDefaultsItStartsOnADeviceOfAnySize) {
  int64_t before = 0;
  for (const int64_t megabytes : {4, 5, 16, 64}) {
    SCOPED_TRACE(megabytes);
    device.memory_bytes = megabytes * kMiB;
    const auto engine = Make(LikeDefaults(), true);
    ASSERT_TRUE(engine.ok()) << engine.status();
    const int64_t tokens = (*engine)->limits().kv_tokens;
    EXPECT_GT(tokens, before);
    EXPECT_LT(tokens, 1 << 20);
    EXPECT_EQ((*engine)->free_kv_tokens(), tokens);
    EXPECT_THAT(lines.front(), HasSubstr(absl::StrCat("--kv_tokens=", tokens, ", the most that fits")));
    EXPECT_THAT(lines.back(), HasSubstr(absl::StrCat(tokens, " KV tokens")));
    before = tokens;
  }
}

// A 32nd of the device is kept free; one page more is refused.
TEST_F(FitOnDeviceTest, FitsBesideWeightsActivationsAndTheReserve) {
  device.memory_bytes = 16 * kMiB;
  int64_t tokens = 0;
  {
    const auto engine = Make(LikeDefaults(), true);
    ASSERT_TRUE(engine.ok()) << engine.status();
    tokens = (*engine)->limits().kv_tokens;
    EXPECT_GE(device.free_bytes(), device.memory_bytes / 32);
    EXPECT_LT(device.free_bytes(), device.memory_bytes / 32 + 64 * 1024);
  }
  EXPECT_TRUE(Make(LikeDefaults(tokens), false).ok());
  const absl::Status more = Make(LikeDefaults(tokens + 16), false).status();
  EXPECT_EQ(more.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(more.message()), HasSubstr(absl::StrCat("--kv_tokens=", tokens + 16, " needs")));
  EXPECT_THAT(std::string(more.message()), HasSubstr(absl::StrCat("at most ", tokens, " tokens fit")));
  EXPECT_THAT(std::string(more.message()), Not(HasSubstr("\n")));
}

TEST_F(FitOnDeviceTest, ADeviceWithTooLittleMemoryIsRefusedInOneLine) {
  // The weights fit, but not a page for each slot.
  device.memory_bytes = 1 << 20;
  const int64_t weights = [&] {
    testing::EmulatedDeviceOps ops(device);
    EXPECT_TRUE(
        UploadWeights(**LoadModel(testing::GoldenFolder("llama")), ops, [](const std::string&) {}).ok());
    return device.memory_bytes - device.free_bytes();
  }();
  device.memory_bytes = weights + weights / 10;
  const absl::Status status = Make(LikeDefaults(), true).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  const std::string line(status.message());
  EXPECT_THAT(line, HasSubstr("--kv_tokens=1048576 needs"));
  EXPECT_THAT(line, HasSubstr("one page for each of the 6 --slots"));
  EXPECT_THAT(line, Not(HasSubstr("\n")));
  device.memory_bytes = weights / 2;
  EXPECT_THAT(std::string(Make(LikeDefaults(), true).status().message()), HasSubstr("the weights need"));
}

}  // namespace
}  // namespace bfio::worker::gpu
