// The kernels between a layer's matrix products, under the emulator or on a GPU, against double precision.
#include "worker/engine/cuda/kernels/row_kernels.h"

#include <cmath>
#include <cstring>

#include "common/base/rng.h"
#include "gtest/gtest.h"
#include "tests/testing/cuda/kernel_memory.h"
#include "worker/engine/model/element.h"

namespace bfio::worker::gpu {
namespace {

using testing::DeviceBuffer;
using testing::Finished;
using testing::KernelOrder;

// Rounding to the 8 significant bits of a bf16 changes a value by at most 2^-8 of it.
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

// Expects the content from index `begin` on to be the poison with which every buffer is filled at first.
template <typename T>
void ExpectUntouched(const std::vector<T>& content, size_t begin) {
  const auto* const bytes = reinterpret_cast<const unsigned char*>(content.data());
  for (size_t i = begin * sizeof(T); i < content.size() * sizeof(T); ++i)
    ASSERT_EQ(bytes[i], testing::kPoison);
}
template <typename T>
bool SameBits(const DeviceBuffer<T>& a, const DeviceBuffer<T>& b) {
  const std::vector<T> mine = a.Content(), other = b.Content();
  return mine.size() == other.size() && std::memcmp(mine.data(), other.data(), mine.size() * sizeof(T)) == 0;
}

class RowKernelsTest : public ::testing::TestWithParam<KernelOrder> {
 protected:
  void SetUp() override { testing::SetKernelOrder(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Orders, RowKernelsTest,
                         ::testing::Values(KernelOrder::kForward, KernelOrder::kReverse));

TEST_P(RowKernelsTest, EmbedGathersRowsAndComputesRotations) {
  Rng rng(1);
  for (const int32_t hidden : {1, 48, 300}) {
    const int32_t rows = 5, grid = 8, vocab = 11, half = 24;
    DeviceBuffer<StepCounts> counts("counts", {StepCounts{rows, 0}});
    std::vector<uint32_t> ids;
    std::vector<int32_t> positions;
    for (int i = 0; i < rows; ++i) {
      ids.push_back(static_cast<uint32_t>(rng.Below(vocab)));
      positions.push_back(i == 0 ? 0 : static_cast<int32_t>(rng.Below(100000)));
    }
    std::vector<float> frequencies;
    for (int i = 0; i < half; ++i) frequencies.push_back(static_cast<float>(std::pow(1e4, -i / 24.0)));
    DeviceBuffer<uint32_t> device_ids("ids", ids);
    DeviceBuffer<int32_t> device_positions("positions", positions);
    DeviceBuffer<float> device_frequencies("frequencies", frequencies);
    const std::vector<Bf16> table = RandomBf16(rng, int64_t{vocab} * hidden);
    DeviceBuffer<Bf16> device_table("table", table);
    DeviceBuffer<float> device_residual("residual", static_cast<size_t>(grid) * hidden);
    DeviceBuffer<float> device_rotations("rotations", static_cast<size_t>(grid) * half * 2);
    const EmbedArgs args = {counts.data(),
                            device_ids.data(),
                            device_positions.data(),
                            device_table.data(),
                            hidden,
                            device_frequencies.data(),
                            half,
                            device_residual.data(),
                            device_rotations.data(),
                            grid};
    ASSERT_EQ(Finished(LaunchEmbed(args, nullptr)), nullptr);
    const std::vector<float> residual = device_residual.Content(), rotations = device_rotations.Content();
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
    // Rows received from another server of a chain keep their residual.
    const std::vector<float> before = RandomFloats(rng, int64_t{grid} * hidden);
    DeviceBuffer<float> come("come", before), turned("turned", rotations.size());
    EmbedArgs further = args;
    further.table = nullptr;
    further.residual = come.data();
    further.rotations = turned.data();
    ASSERT_EQ(Finished(LaunchEmbed(further, nullptr)), nullptr);
    EXPECT_EQ(come.Content(), before);
    EXPECT_TRUE(SameBits(turned, device_rotations));
  }
}

// Random arguments of the norm kernel, on the host and on the device.
struct NormCase {
  NormCase(Rng& rng, int32_t rows, int32_t hidden, int32_t grid, int32_t draws = 0)
      : before(RandomFloats(rng, int64_t{rows} * hidden)),
        addend(RandomBf16(rng, int64_t{rows} * hidden)),
        bias(RandomBf16(rng, hidden)),
        weight(RandomBf16(rng, hidden)),
        counts("counts", {StepCounts{rows, draws}}),
        // Rows beyond the step's have no memory in addend and residual, so an access to them is detected.
        residual("residual", before),
        device_addend("addend", addend),
        device_bias("bias", bias),
        device_weight("weight", weight),
        normed("normed", static_cast<size_t>(grid) * hidden) {
    args.counts = counts.data();
    args.residual = residual.data();
    args.addend = device_addend.data();
    args.bias = device_bias.data();
    args.weight = device_weight.data();
    args.epsilon = 1e-5f;
    args.hidden = hidden;
    args.normed = normed.data();
    args.grid_rows = grid;
  }
  std::vector<float> before;
  std::vector<Bf16> addend, bias, weight;
  DeviceBuffer<StepCounts> counts;
  DeviceBuffer<float> residual;
  DeviceBuffer<Bf16> device_addend, device_bias, device_weight, normed;
  NormArgs args;
};

TEST_P(RowKernelsTest, NormAddsAndNormalises) {
  Rng rng(2);
  for (const int32_t hidden : {1, 5, 7, 8, 48, 64, 2056, 4099}) {
    // Cases: 0 no addend; 1 an addend; 2 an addend and a bias; 3 the same, for picked rows and without a
    // change of the residual.
    for (const int what : {0, 1, 2, 3}) {
      const std::vector<int32_t> from =
          what == 3 ? std::vector<int32_t>{1, 4, 5} : std::vector<int32_t>{0, 1, 2};
      NormCase c(rng, what == 3 ? 6 : 3, hidden, 4, 3);
      DeviceBuffer<int32_t> picked("picked", from);
      if (what < 1) c.args.addend = nullptr;
      if (what < 2) c.args.bias = nullptr;
      if (what == 3) c.args.picked = picked.data();
      ASSERT_EQ(Finished(LaunchNorm(c.args, nullptr)), nullptr);
      const std::vector<float> residual = c.residual.Content();
      const std::vector<Bf16> normed = c.normed.Content();
      for (size_t row = 0; row < from.size(); ++row) {
        std::vector<double> sum;
        double squares = 0;
        for (int i = 0; i < hidden; ++i) {
          const int at = from[row] * hidden + i;
          sum.push_back(c.before[at] + (what > 0 ? Value(c.addend[at]) : 0) +
                        (what > 1 ? Value(c.bias[i]) : 0));
          squares += sum[i] * sum[i];
          const double left = what < 3 ? sum[i] : c.before[at];
          ASSERT_NEAR(residual[at], left, 1e-6 * (1 + std::abs(left)));
        }
        const double inverse = 1 / std::sqrt(squares / hidden + 1e-5);
        for (int i = 0; i < hidden; ++i) {
          const double want = sum[i] * inverse * Value(c.weight[i]);
          // Two roundings to bf16; the error of fp32 sums is far smaller.
          ASSERT_NEAR(Value(normed[row * hidden + i]), want, 2.1 * kHalfUnit * std::abs(want) + 1e-6);
        }
      }
      ExpectUntouched(normed, from.size() * hidden);
    }
  }
}

// Checks the order of the roundings on values where it makes a difference.
TEST_P(RowKernelsTest, NormRoundsBeforeTheWeightAndAfter) {
  Rng rng(3);
  const int32_t hidden = 256;
  NormCase c(rng, 1, hidden, 1);
  c.args.addend = c.args.bias = nullptr;
  c.args.epsilon = 0;
  ASSERT_EQ(Finished(LaunchNorm(c.args, nullptr)), nullptr);
  const std::vector<Bf16> normed = c.normed.Content();
  double squares = 0;
  for (const float value : c.before) squares += static_cast<double>(value) * value;
  int equal = 0, once = 0;
  for (int i = 0; i < hidden; ++i) {
    const auto first = static_cast<float>(c.before[i] / std::sqrt(squares / hidden));
    const float w = FromBf16(c.weight[i].bits);
    equal += normed[i].bits == worker::ToBf16(FromBf16(worker::ToBf16(first)) * w);
    once += normed[i].bits == worker::ToBf16(first * w);
  }
  // All but values for which fp32 and double round to different bf16.
  EXPECT_GE(equal, hidden - 2);
  EXPECT_LT(once, hidden * 9 / 10);
}

// A model that is split between two layers: one server ends with the sum, the next begins with the norm.
TEST_P(RowKernelsTest, SumThenNormIsBitEqualToBothAtOnce) {
  Rng rng(6);
  for (const int32_t hidden : {7, 64, 2056}) {
    NormCase c(rng, 3, hidden, 3);
    DeviceBuffer<float> cut("cut", c.before);
    DeviceBuffer<Bf16> later("later", c.normed.size());
    ASSERT_EQ(Finished(LaunchNorm(c.args, nullptr)), nullptr);
    NormArgs sum = c.args, norm = c.args;
    sum.residual = norm.residual = cut.data();
    sum.weight = nullptr;
    sum.normed = nullptr;
    ASSERT_EQ(Finished(LaunchNorm(sum, nullptr)), nullptr);
    EXPECT_EQ(cut.Content(), c.residual.Content());
    norm.addend = norm.bias = nullptr;
    norm.normed = later.data();
    ASSERT_EQ(Finished(LaunchNorm(norm, nullptr)), nullptr);
    EXPECT_TRUE(SameBits(later, c.normed));
    EXPECT_EQ(cut.Content(), c.residual.Content());
  }
}

TEST_P(RowKernelsTest, SiluMultiplies) {
  Rng rng(5);
  for (const int32_t width : {1, 9, 72, 80, 96, 2048, 2056, 5001}) {
    for (const bool biased : {false, true}) {
      const int32_t rows = 2;
      DeviceBuffer<StepCounts> counts("counts", {StepCounts{rows, 0}});
      std::vector<Bf16> gate_up = RandomBf16(rng, int64_t{rows} * 2 * width);
      const std::vector<Bf16> bias = RandomBf16(rng, 2 * width);
      gate_up[0] = {worker::ToBf16(-90)};  // exp overflows, but the product must not
      DeviceBuffer<Bf16> device_gate_up("gate_up", gate_up), device_bias("bias", bias),
          device_out("out", static_cast<size_t>(3) * width);
      SiluArgs args;
      args.counts = counts.data();
      args.gate_up = device_gate_up.data();
      args.bias = biased ? device_bias.data() : nullptr;
      args.width = width;
      args.out = device_out.data();
      args.grid_rows = 3;
      ASSERT_EQ(Finished(LaunchSilu(args, nullptr)), nullptr);
      const std::vector<Bf16> out = device_out.Content();
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

// Adds biases, norms query and key heads, rotates them, and appends keys and values to the cache.
TEST_P(RowKernelsTest, QkvPreparesQueriesAndAppendsKeysAndValues) {
  Rng rng(7);
  for (const int32_t dim : {2, 16, 80, 128}) {
    for (const bool all : {false, true}) {
      const int32_t rows = 3, grid = 4, q_heads = 6, kv_heads = 2, heads = q_heads + 2 * kv_heads,
                    half = dim / 2;
      const KvLayout kv = {kv_heads, 16, dim};
      const std::vector<int32_t> positions = {0, 17, 63}, pages = {2, 0, 4};
      const std::vector<Bf16> before = RandomBf16(rng, int64_t{rows} * heads * dim),
                              bias = RandomBf16(rng, heads * dim), q_norm = RandomBf16(rng, dim),
                              k_norm = RandomBf16(rng, dim);
      const std::vector<float> turns = RandomFloats(rng, int64_t{rows} * dim);
      const auto pool = static_cast<size_t>(kv.PoolElements(5));
      DeviceBuffer<StepCounts> counts("counts", {StepCounts{rows, 0}});
      DeviceBuffer<Bf16> device_qkv("qkv", before), device_bias("bias", bias),
          device_q_norm("q_norm", q_norm), device_k_norm("k_norm", k_norm), device_keys("keys", pool),
          device_values("values", pool);
      DeviceBuffer<float> device_turns("rotations", turns);
      DeviceBuffer<int32_t> device_positions("positions", positions), device_pages("pages", pages);
      QkvArgs args;
      args.counts = counts.data();
      args.qkv = device_qkv.data();
      args.bias = all ? device_bias.data() : nullptr;
      args.q_norm = all ? device_q_norm.data() : nullptr;
      args.k_norm = all ? device_k_norm.data() : nullptr;
      args.epsilon = 1e-6f;
      args.q_heads = q_heads;
      args.rotations = device_turns.data();
      args.positions = device_positions.data();
      args.row_pages = device_pages.data();
      args.kv = kv;
      args.keys = device_keys.data();
      args.values = device_values.data();
      args.grid_rows = grid;
      ASSERT_EQ(Finished(LaunchQkv(args, nullptr)), nullptr);
      const std::vector<Bf16> qkv = device_qkv.Content(), keys = device_keys.Content(),
                              values = device_values.Content();
      std::vector<bool> written(pool);
      for (int row = 0; row < rows; ++row) {
        for (int head = 0; head < heads; ++head) {
          const bool query = head < q_heads, value = head >= q_heads + kv_heads;
          const int64_t from = int64_t{row} * heads * dim + head * dim;
          std::vector<double> x;
          double squares = 0;
          for (int i = 0; i < dim; ++i) {
            x.push_back(Value(before[from + i]) + (all ? Value(bias[head * dim + i]) : 0));
            squares += x[i] * x[i];
          }
          for (int i = 0; i < dim && all && !value; ++i) {
            x[i] *= Value(query ? q_norm[i] : k_norm[i]) / std::sqrt(squares / dim + 1e-6);
          }
          const int kv_head = head - q_heads - (value ? kv_heads : 0);
          const int64_t to = query ? from : kv.TokenOffset(pages[row], kv_head, positions[row] % 16);
          const std::vector<Bf16>& got = query ? qkv : value ? values : keys;
          for (int i = 0; i < half; ++i) {
            const double cosine = turns[row * dim + 2 * i], sine = turns[row * dim + 2 * i + 1];
            const double low = value ? x[i] : x[i] * cosine - x[i + half] * sine;
            const double high = value ? x[i + half] : x[i + half] * cosine + x[i] * sine;
            const double size = std::abs(x[i]) + std::abs(x[i + half]);
            ASSERT_NEAR(Value(got[to + i]), low, kHalfUnit * std::abs(low) + 1e-5 * (1 + 3 * size));
            ASSERT_NEAR(Value(got[to + i + half]), high, kHalfUnit * std::abs(high) + 1e-5 * (1 + 3 * size));
          }
          for (int i = 0; i < dim && !query; ++i) written[to + i] = true;
        }
      }
      for (size_t i = 0; i < pool; ++i) {
        ASSERT_TRUE(written[i] || (keys[i].bits & values[i].bits) == 0xffff) << "another token's place";
      }
    }
  }
}

TEST_P(RowKernelsTest, RandomWeightsAreWithinTheirSpread) {
  DeviceBuffer<Bf16> device_out("out", 5000);
  ASSERT_EQ(Finished(LaunchFillRandom(device_out.data(), 4990, 1, 0.5f, 2, nullptr)), nullptr);
  const std::vector<Bf16> out = device_out.Content();
  double sum = 0;
  for (int i = 0; i < 4990; ++i) {
    ASSERT_NEAR(Value(out[i]), 2, 0.51);
    sum += Value(out[i]);
  }
  EXPECT_NEAR(sum / 4990, 2, 0.05);
  ExpectUntouched(out, 4990);
}

}  // namespace
}  // namespace bfio::worker::gpu
