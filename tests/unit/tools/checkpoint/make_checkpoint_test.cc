#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "tools/checkpoint/generate.h"
#include "worker/engine/model/element.h"
#include "worker/engine/model/layout.h"
#include "worker/engine/model/model.h"

namespace bfio::checkpoint {
namespace {

namespace fs = std::filesystem;
using worker::DType;
using worker::FromF16;
using worker::LoadModel;
using worker::Model;
using worker::ModelConfig;
using worker::TensorView;
using Family = ModelConfig::Family;

CheckpointOptions Small(Family family) {
  CheckpointOptions options;
  options.model.family = family;
  options.model.hidden = 48;
  options.model.intermediate = 40;
  options.model.layers = 3;
  options.model.heads = 4;
  options.model.kv_heads = 2;
  options.model.head_dim = 16;
  options.model.vocab = 130;
  options.model.max_positions = 256;
  options.model.rms_epsilon = 1e-5;
  options.model.eos_token_ids = {2, 9};
  return options;
}

class MakeCheckpoint : public ::testing::Test {
 protected:
  MakeCheckpoint() {
    root_ = ::testing::TempDir() + "/make_" + ::testing::UnitTest::GetInstance()->current_test_info()->name();
    fs::remove_all(root_);
  }
  ~MakeCheckpoint() override { fs::remove_all(root_); }

  std::string Write(const CheckpointOptions& options) {
    const std::string dir = absl::StrCat(root_, "/", ++count_);
    const absl::Status status = WriteRandomCheckpoint(options, dir);
    EXPECT_TRUE(status.ok()) << status;
    return dir;
  }
  std::unique_ptr<Model> Load(const CheckpointOptions& options) {
    auto model = LoadModel(Write(options));
    EXPECT_TRUE(model.ok()) << model.status();
    return *std::move(model);
  }

  std::string root_;
  int count_ = 0;
};

bool SameBytes(const TensorView& a, const TensorView& b) {
  return a.shape == b.shape && a.dtype == b.dtype && std::memcmp(a.data, b.data, a.bytes()) == 0;
}

float At(const TensorView& view, int64_t index) {
  if (view.dtype == DType::kF32) return reinterpret_cast<const float*>(view.data)[index];
  const uint16_t half = reinterpret_cast<const uint16_t*>(view.data)[index];
  EXPECT_EQ(view.dtype, DType::kBF16);
  return std::bit_cast<float>(static_cast<uint32_t>(half) << 16);
}

TEST_F(MakeCheckpoint, EveryFamilyLoadsWithTheRequestedShape) {
  for (const Family family : {Family::kLlama, Family::kMistral, Family::kQwen2, Family::kQwen3}) {
    for (const bool tied : {false, true}) {
      for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
        CheckpointOptions options = Small(family);
        options.model.tied_embeddings = tied;
        options.dtype = dtype;
        const auto model = Load(options);
        const ModelConfig& config = model->config();
        EXPECT_EQ(config.family, family);
        EXPECT_EQ(config.tied_embeddings, tied);
        EXPECT_EQ(config.head_dim, 16);
        EXPECT_EQ(config.rms_epsilon, 1e-5);
        EXPECT_EQ(config.eos_token_ids, options.model.eos_token_ids);
        EXPECT_EQ(config.qk_norm, family == Family::kQwen3);
        EXPECT_EQ(model->layers()[2].v_bias.present(), family == Family::kQwen2);
        EXPECT_EQ(model->layers()[2].gate.dtype, dtype);
      }
    }
  }
}

TEST_F(MakeCheckpoint, ValuesAreTheSameOnEveryMachineAndHalvesAreTheRoundedOnes) {
  CheckpointOptions options = Small(Family::kLlama);
  options.dtype = DType::kF32;
  const auto model = Load(options);
  // The expected value was computed by other means, with Python's integers.
  EXPECT_EQ(At(model->embedding(), 0), -0x1.555d82p+0f);
  EXPECT_EQ(At(model->layers()[2].down, 1919), 0x1.22ecfp-5f);
  CheckpointOptions other = options;
  other.seed = 2;
  EXPECT_NE(At(Load(other)->embedding(), 0), At(model->embedding(), 0));
  const auto halves = Load(Small(Family::kLlama));
  const TensorView &a = halves->layers()[0].q, &b = model->layers()[0].q;
  for (int64_t i = 0; i < a.elements(); ++i) EXPECT_NEAR(At(a, i), At(b, i), std::fabs(At(b, i)) / 256);
}

TEST_F(MakeCheckpoint, ShardsChangeNothingButTheFiles) {
  CheckpointOptions options = Small(Family::kQwen2);
  const auto whole = Load(options);
  for (const int64_t shards : {2, 3, 7, 39}) {
    options.shards = shards;
    const std::string dir = Write(options);
    const auto model = LoadModel(dir);
    ASSERT_TRUE(model.ok()) << model.status();
    EXPECT_TRUE(SameBytes((*model)->embedding(), whole->embedding()));
    EXPECT_TRUE(SameBytes((*model)->layers()[1].up, whole->layers()[1].up));
    EXPECT_TRUE(SameBytes((*model)->lm_head(), whole->lm_head()));
    int64_t files = 0;
    for (const auto& entry : fs::directory_iterator(dir)) files += entry.path().extension() == ".safetensors";
    EXPECT_EQ(files, shards);
  }
}

// The value of a half by the definition of the format.
float HalfAsFloat(uint16_t half) {
  const int exponent = half >> 10 & 31, mantissa = half & 1023;
  const double size = exponent == 0    ? mantissa * 0x1.0p-24
                      : exponent == 31 ? (mantissa == 0 ? INFINITY : NAN)
                                       : std::ldexp(1024 + mantissa, exponent - 25);
  return static_cast<float>(half & 0x8000 ? -size : size);
}

// Every half rounds to itself; a value between two adjacent halves rounds to the nearer one, and the midpoint
// to the even one.
template <typename Round, typename Widen>
void ExpectRoundsToNearestEven(uint16_t largest, Round round, Widen widen) {
  for (uint32_t half = 0; half < largest; ++half) {
    const float low = widen(half), high = widen(half + 1), middle = low + (high - low) / 2;
    ASSERT_EQ(round(low), half);
    ASSERT_EQ(round(-high), (half + 1) | 0x8000);
    ASSERT_EQ(round(middle), half % 2 == 0 ? half : half + 1);
    ASSERT_EQ(round(std::nextafter(middle, 0.0f)), half);
    ASSERT_EQ(round(std::nextafter(middle, INFINITY)), half + 1);
  }
}

TEST(Rounding, IsToTheNearestEvenHalf) {
  ExpectRoundsToNearestEven(0x7bff, RoundToF16, HalfAsFloat);
  EXPECT_EQ(RoundToF16(65519.0f), 0x7bff);
  EXPECT_EQ(RoundToF16(65520.0f), 0x7c00);
  EXPECT_EQ(RoundToF16(-INFINITY), 0xfc00);
  EXPECT_TRUE(std::isnan(HalfAsFloat(RoundToF16(NAN))));
  const auto bf16_as_float = [](uint32_t half) { return std::bit_cast<float>(half << 16); };
  ExpectRoundsToNearestEven(0x7f7f, RoundToBF16, bf16_as_float);
  EXPECT_EQ(RoundToBF16(INFINITY), 0x7f80);
  EXPECT_TRUE(std::isnan(bf16_as_float(RoundToBF16(NAN))));
}

TEST(FromF16, ConvertsEveryHalfExactly) {
  for (uint32_t half = 0; half < 0x10000; ++half) {
    const float wanted = HalfAsFloat(static_cast<uint16_t>(half)), got = FromF16(static_cast<uint16_t>(half));
    if (std::isnan(wanted)) {
      ASSERT_TRUE(std::isnan(got)) << half;
    } else {
      ASSERT_EQ(std::bit_cast<uint32_t>(got), std::bit_cast<uint32_t>(wanted)) << half;
    }
  }
}

}  // namespace
}  // namespace bfio::checkpoint
