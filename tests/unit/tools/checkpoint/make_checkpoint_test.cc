#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <filesystem>
#include <limits>
#include <string>

#include "tools/checkpoint/generate.h"
#include "worker/engine/model/element.h"
#include "worker/engine/model/model.h"

namespace bfio::checkpoint {
namespace {

using worker::DType;
using worker::ElementAt;
using worker::FromF16;

TEST(MakeCheckpoint, LoadsWithTheRequestedShapeAndTheSameValuesOnEveryMachine) {
  const worker::ModelConfig wanted = {.hidden = 48,
                                      .intermediate = 40,
                                      .layers = 3,
                                      .heads = 4,
                                      .kv_heads = 2,
                                      .head_dim = 16,
                                      .vocab = 130,
                                      .max_positions = 256,
                                      .eos_token_ids = {2, 9}};
  const std::string folder = ::testing::TempDir() + "/made";
  std::filesystem::remove_all(folder);
  ASSERT_TRUE(WriteRandomCheckpoint(wanted, folder).ok());
  const auto model = worker::LoadModel(folder);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ((*model)->config().head_dim, 16);
  EXPECT_EQ((*model)->config().max_positions, 256);
  EXPECT_EQ((*model)->config().eos_token_ids, wanted.eos_token_ids);
  EXPECT_EQ((*model)->layers()[2].gate.dtype, DType::kBF16);
  // The expected values were computed by other means, with Python's integers, and then rounded.
  EXPECT_EQ(ElementAt((*model)->embedding(), 0), -0x1.56p+0f);
  EXPECT_EQ(ElementAt((*model)->layers()[2].down, 1919), 0x1.22p-5f);
  EXPECT_TRUE(absl::IsAlreadyExists(WriteRandomCheckpoint(wanted, folder)));
  std::filesystem::remove_all(folder);
}

// The value of a half by the definition of the format.
float HalfAsFloat(uint16_t half) {
  const int exponent = half >> 10 & 31, mantissa = half & 1023;
  const double size = exponent == 0    ? mantissa * 0x1.0p-24
                      : exponent == 31 ? (mantissa == 0 ? INFINITY : NAN)
                                       : std::ldexp(1024 + mantissa, exponent - 25);
  return static_cast<float>(half & 0x8000 ? -size : size);
}

// Every number rounds to itself; a value between two adjacent ones rounds to the nearer one, and the midpoint
// to the even one.
TEST(ToBf16, RoundsToTheNearestEvenNumber) {
  for (uint32_t half = 0; half < 0x7f7f; ++half) {
    const float low = worker::FromBf16(half), high = worker::FromBf16(half + 1),
                middle = low + (high - low) / 2;
    ASSERT_EQ(worker::ToBf16(low), half);
    ASSERT_EQ(worker::ToBf16(-high), (half + 1) | 0x8000);
    ASSERT_EQ(worker::ToBf16(middle), half % 2 == 0 ? half : half + 1);
    ASSERT_EQ(worker::ToBf16(std::nextafter(middle, 0.0f)), half);
    ASSERT_EQ(worker::ToBf16(std::nextafter(middle, INFINITY)), half + 1);
  }
  for (const float large : {INFINITY, std::numeric_limits<float>::max()})
    EXPECT_EQ(worker::ToBf16(large), 0x7f80);
  EXPECT_TRUE(std::isnan(worker::FromBf16(worker::ToBf16(NAN))));
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
