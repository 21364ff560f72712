// How many KV tokens an engine allocates on emulated devices of different sizes.
#include "worker/engine/cuda/cuda_parts.h"

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "tests/testing/emulated_device_ops.h"
#include "tests/testing/golden.h"
#include "worker/engine/cuda/cuda_backend.h"

namespace bfio::worker::gpu {
namespace {

using testing::EmulatedDevice;
using ::testing::HasSubstr;
using ::testing::Not;

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
