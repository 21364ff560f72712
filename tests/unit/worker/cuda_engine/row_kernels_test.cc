// The kernels between a layer's products, under the emulator, against double precision.
#include "worker/engine/cuda/kernels/row_kernels.h"

#include <cmath>
#include <cstring>
#include <vector>

#include "common/base/rng.h"
#include "gtest/gtest.h"
#include "simt/machine.h"
#include "simt/memory.h"
#include "worker/engine/model/element.h"

namespace bfio::worker::gpu {
namespace {

// Rounding to the 8 bits of a bf16 moves a value by at most 2^-8 of it.
constexpr double kHalfUnit = 0x1p-8;

double Value(Bf16 element) {
  return FromBf16(element.bits);
}

std::vector<Bf16> RandomBf16(Rng& rng, int64_t count) {
  std::vector<Bf16> values;
  for (int64_t i = 0; i < count; ++i) values.push_back({worker::ToBf16(static_cast<float>(rng.Normal()))});
  return values;
}
std::vector<float> RandomFloats(Rng& rng, int64_t count) {
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i) values.push_back(static_cast<float>(rng.Normal()));
  return values;
}

// Poison, as every buffer is at first.
template <typename T>
void ExpectUntouched(const simt::DeviceBuffer<T>& buffer, size_t begin) {
  const auto* const bytes = reinterpret_cast<const unsigned char*>(buffer.data());
  for (size_t i = begin * sizeof(T); i < buffer.size() * sizeof(T); ++i) ASSERT_EQ(bytes[i], simt::kPoison);
}

class RowKernelsTest : public ::testing::TestWithParam<simt::Order> {
 protected:
  void SetUp() override { simt::SetOrder(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Orders, RowKernelsTest,
                         ::testing::Values(simt::Order::kForward, simt::Order::kReverse));

TEST_P(RowKernelsTest, EmbedGathersRowsAndTurnsPositionsIntoRotations) {
  Rng rng(1);
  for (const int32_t hidden : {1, 48, 300}) {
    const int32_t rows = 5, grid = 8, vocab = 11, half = 24;
    simt::DeviceBuffer<StepCounts> counts("counts", {StepCounts{rows, 0}});
    std::vector<uint32_t> ids;
    std::vector<int32_t> positions;
    for (int i = 0; i < rows; ++i) {
      ids.push_back(static_cast<uint32_t>(rng.Below(vocab)));
      positions.push_back(i == 0 ? 0 : static_cast<int32_t>(rng.Below(100000)));
    }
    std::vector<float> frequencies;
    for (int i = 0; i < half; ++i) frequencies.push_back(static_cast<float>(std::pow(1e4, -i / 24.0)));
    simt::DeviceBuffer<uint32_t> device_ids("ids", ids);
    simt::DeviceBuffer<int32_t> device_positions("positions", positions);
    simt::DeviceBuffer<float> device_frequencies("frequencies", frequencies);
    simt::DeviceBuffer<Bf16> table("table", RandomBf16(rng, int64_t{vocab} * hidden));
    simt::DeviceBuffer<float> residual("residual", static_cast<size_t>(grid) * hidden);
    simt::DeviceBuffer<float> rotations("rotations", static_cast<size_t>(grid) * half * 2);
    const EmbedArgs args = {counts.data(),
                            device_ids.data(),
                            device_positions.data(),
                            table.data(),
                            hidden,
                            device_frequencies.data(),
                            half,
                            residual.data(),
                            rotations.data(),
                            grid};
    ASSERT_EQ(LaunchEmbed(args, nullptr), nullptr);
    for (int row = 0; row < rows; ++row) {
      for (int i = 0; i < hidden; ++i) {
        ASSERT_EQ(residual[row * hidden + i], Value(table[ids[row] * hidden + i]));
      }
      for (int i = 0; i < half; ++i) {
        const float angle = static_cast<float>(positions[row]) * frequencies[i];
        ASSERT_NEAR(rotations[2 * (row * half + i)], std::cos(static_cast<double>(angle)), 1e-6);
        ASSERT_NEAR(rotations[2 * (row * half + i) + 1], std::sin(static_cast<double>(angle)), 1e-6);
      }
    }
    ExpectUntouched(residual, static_cast<size_t>(rows) * hidden);
    ExpectUntouched(rotations, static_cast<size_t>(rows) * half * 2);
    // Rows that have come from another server keep their residual.
    const std::vector<float> before = RandomFloats(rng, int64_t{grid} * hidden);
    simt::DeviceBuffer<float> come("come", before), turned("turned", rotations.size());
    EmbedArgs further = args;
    further.table = nullptr;
    further.residual = come.data();
    further.rotations = turned.data();
    ASSERT_EQ(LaunchEmbed(further, nullptr), nullptr);
    EXPECT_EQ(come.Content(), before);
    EXPECT_EQ(std::memcmp(turned.data(), rotations.data(), rotations.size() * sizeof(float)), 0);
  }
}

TEST_P(RowKernelsTest, NormAddsAndNormalises) {
  Rng rng(2);
  for (const int32_t hidden : {1, 7, 8, 48, 64, 2056, 4099}) {
    // Nothing added; an addend; an addend and a bias; an addend in fp32 and a bias.
    for (const int what : {0, 1, 2, 3}) {
      const int32_t rows = 3, grid = 4;
      simt::DeviceBuffer<StepCounts> counts("counts", {StepCounts{rows, 0}});
      const std::vector<float> before = RandomFloats(rng, int64_t{rows} * hidden);
      simt::DeviceBuffer<float> residual("residual", before);
      // Rows beyond the step's are poison, and are not there in the residual at all.
      std::vector<Bf16> addends = RandomBf16(rng, int64_t{rows} * hidden);
      simt::DeviceBuffer<Bf16> addend("addend", addends), bias("bias", RandomBf16(rng, hidden)),
          weight("weight", RandomBf16(rng, hidden)), normed("normed", static_cast<size_t>(grid) * hidden);
      NormArgs args;
      args.counts = counts.data();
      args.residual = residual.data();
      std::vector<float> wide;
      for (const Bf16 element : addends) wide.push_back(FromBf16(element.bits));
      simt::DeviceBuffer<float> wide_addend("wide_addend", wide);
      args.addend = what == 1 || what == 2 ? addend.data() : nullptr;
      args.wide_addend = what == 3 ? wide_addend.data() : nullptr;
      args.bias = what > 1 ? bias.data() : nullptr;
      args.weight = weight.data();
      args.epsilon = 1e-5f;
      args.hidden = hidden;
      args.normed = normed.data();
      args.grid_rows = grid;
      ASSERT_EQ(LaunchNorm(args, nullptr), nullptr);
      for (int row = 0; row < rows; ++row) {
        std::vector<double> sum;
        double squares = 0;
        for (int i = 0; i < hidden; ++i) {
          const int at = row * hidden + i;
          sum.push_back(before[at] + (what > 0 ? Value(addend[at]) : 0) + (what > 1 ? Value(bias[i]) : 0));
          squares += sum[i] * sum[i];
          ASSERT_NEAR(residual[at], sum[i], 1e-6 * (1 + std::abs(sum[i])));
        }
        const double inverse = 1 / std::sqrt(squares / hidden + 1e-5);
        for (int i = 0; i < hidden; ++i) {
          const double want = sum[i] * inverse * Value(weight[i]);
          // Rounded twice; fp32 sums add far less.
          ASSERT_NEAR(Value(normed[row * hidden + i]), want, 2.1 * kHalfUnit * std::abs(want) + 1e-9);
        }
      }
      ExpectUntouched(normed, static_cast<size_t>(rows) * hidden);
    }
  }
}

// The order of the roundings, on values where it shows.
TEST_P(RowKernelsTest, NormRoundsBeforeTheWeightAndAfter) {
  Rng rng(3);
  const int32_t hidden = 256;
  simt::DeviceBuffer<StepCounts> counts("counts", {StepCounts{1, 0}});
  simt::DeviceBuffer<float> residual("residual", RandomFloats(rng, hidden));
  simt::DeviceBuffer<Bf16> weight("weight", RandomBf16(rng, hidden)), normed("normed", hidden);
  NormArgs args;
  args.counts = counts.data();
  args.residual = residual.data();
  args.weight = weight.data();
  args.hidden = hidden;
  args.normed = normed.data();
  args.grid_rows = 1;
  ASSERT_EQ(LaunchNorm(args, nullptr), nullptr);
  double squares = 0;
  for (int i = 0; i < hidden; ++i) squares += static_cast<double>(residual[i]) * residual[i];
  const double inverse = 1 / std::sqrt(squares / hidden);
  int equal = 0, once = 0;
  for (int i = 0; i < hidden; ++i) {
    const auto first = static_cast<float>(residual[i] * inverse);
    const float w = FromBf16(weight[i].bits);
    equal += normed[i].bits == worker::ToBf16(FromBf16(worker::ToBf16(first)) * w);
    once += normed[i].bits == worker::ToBf16(first * w);
  }
  // All but those where fp32 and double round to different bf16.
  EXPECT_GE(equal, hidden - 2);
  EXPECT_LT(once, hidden * 9 / 10);
}

TEST_P(RowKernelsTest, PickedRowsAreNormedAndTheResidualStays) {
  Rng rng(4);
  for (const int32_t hidden : {5, 64}) {
    const int32_t rows = 6;
    const std::vector<int32_t> picked = {1, 4, 5};
    simt::DeviceBuffer<StepCounts> counts("counts", {StepCounts{rows, 3}});
    const std::vector<float> before = RandomFloats(rng, int64_t{rows} * hidden);
    simt::DeviceBuffer<float> residual("residual", before);
    simt::DeviceBuffer<int32_t> device_picked("picked", picked);
    simt::DeviceBuffer<Bf16> addend("addend", RandomBf16(rng, int64_t{rows} * hidden)),
        bias("bias", RandomBf16(rng, hidden)), weight("weight", RandomBf16(rng, hidden)),
        normed("normed", static_cast<size_t>(4) * hidden);
    NormArgs args;
    args.counts = counts.data();
    args.picked = device_picked.data();
    args.residual = residual.data();
    args.addend = addend.data();
    args.bias = bias.data();
    args.weight = weight.data();
    args.epsilon = 1e-6f;
    args.hidden = hidden;
    args.normed = normed.data();
    args.grid_rows = 4;
    ASSERT_EQ(LaunchNorm(args, nullptr), nullptr);
    EXPECT_EQ(residual.Content(), before);
    for (size_t i = 0; i < picked.size(); ++i) {
      double squares = 0;
      const auto sum = [&](int c) {
        const int at = picked[i] * hidden + c;
        return before[at] + Value(addend[at]) + Value(bias[c]);
      };
      for (int c = 0; c < hidden; ++c) squares += sum(c) * sum(c);
      for (int c = 0; c < hidden; ++c) {
        const double want = sum(c) / std::sqrt(squares / hidden + 1e-6) * Value(weight[c]);
        ASSERT_NEAR(Value(normed[i * hidden + c]), want, 2.1 * kHalfUnit * std::abs(want) + 1e-6);
      }
    }
    ExpectUntouched(normed, picked.size() * hidden);
  }
}

// A model that is cut between two layers: one server ends with the sum, the next begins with the norm.
TEST_P(RowKernelsTest, TheSumAloneAndThenTheNormAreBothAtOnceToTheLastBit) {
  Rng rng(6);
  for (const int32_t hidden : {7, 64, 2056}) {
    const int32_t rows = 3;
    simt::DeviceBuffer<StepCounts> counts("counts", {StepCounts{rows, 0}});
    const std::vector<float> before = RandomFloats(rng, int64_t{rows} * hidden);
    simt::DeviceBuffer<float> residual("residual", before), cut("cut", before);
    simt::DeviceBuffer<Bf16> addend("addend", RandomBf16(rng, int64_t{rows} * hidden)),
        bias("bias", RandomBf16(rng, hidden)), weight("weight", RandomBf16(rng, hidden)),
        normed("normed", static_cast<size_t>(rows) * hidden), later("later", normed.size());
    NormArgs args;
    args.counts = counts.data();
    args.residual = residual.data();
    args.addend = addend.data();
    args.bias = bias.data();
    args.weight = weight.data();
    args.epsilon = 1e-5f;
    args.hidden = hidden;
    args.normed = normed.data();
    args.grid_rows = rows;
    ASSERT_EQ(LaunchNorm(args, nullptr), nullptr);
    NormArgs sum = args;
    sum.residual = cut.data();
    sum.weight = nullptr;
    sum.normed = nullptr;
    ASSERT_EQ(LaunchNorm(sum, nullptr), nullptr);
    EXPECT_EQ(cut.Content(), residual.Content());
    NormArgs norm = args;
    norm.residual = cut.data();
    norm.addend = norm.bias = nullptr;
    norm.normed = later.data();
    ASSERT_EQ(LaunchNorm(norm, nullptr), nullptr);
    EXPECT_EQ(std::memcmp(later.data(), normed.data(), normed.size() * sizeof(Bf16)), 0);
    EXPECT_EQ(cut.Content(), residual.Content());
  }
}

TEST_P(RowKernelsTest, SiluMultiplies) {
  Rng rng(5);
  for (const int32_t width : {1, 9, 72, 80, 96, 2048, 2056, 5001}) {
    for (const bool biased : {false, true}) {
      const int32_t rows = 2;
      simt::DeviceBuffer<StepCounts> counts("counts", {StepCounts{rows, 0}});
      simt::DeviceBuffer<Bf16> gate_up("gate_up", RandomBf16(rng, int64_t{rows} * 2 * width)),
          bias("bias", RandomBf16(rng, 2 * width)), out("out", static_cast<size_t>(3) * width);
      gate_up[0] = {worker::ToBf16(-90)};  // exp overflows, the product must not
      SiluArgs args;
      args.counts = biased ? counts.data() : nullptr;
      args.gate_up = gate_up.data();
      args.gate_bias = biased ? bias.data() : nullptr;
      args.up_bias = biased ? bias.data() + width : nullptr;
      args.width = width;
      args.out = out.data();
      args.grid_rows = biased ? 3 : rows;
      ASSERT_EQ(LaunchSilu(args, nullptr), nullptr);
      for (int row = 0; row < rows; ++row) {
        for (int i = 0; i < width; ++i) {
          const double gate = Value(gate_up[2 * row * width + i]) + (biased ? Value(bias[i]) : 0);
          const double up = Value(gate_up[(2 * row + 1) * width + i]) + (biased ? Value(bias[width + i]) : 0);
          const double want = gate / (1 + std::exp(-gate)) * up;
          ASSERT_NEAR(Value(out[row * width + i]), want, 1.05 * kHalfUnit * std::abs(want) + 1e-6);
        }
      }
      ExpectUntouched(out, static_cast<size_t>(rows) * width);
    }
  }
}

}  // namespace
}  // namespace bfio::worker::gpu
