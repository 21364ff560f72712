// The CPU kernels against sums in double precision, and the guarantees of each version.
#include "worker/engine/cpu/kernels.h"

#include <cmath>

#include "common/base/rng.h"
#include "gtest/gtest.h"
#include "worker/engine/cpu/kv_cache.h"
#include "worker/engine/cpu/threads.h"
#include "worker/engine/cpu/weights.h"

namespace bfio::worker::cpu {
namespace {

std::vector<float> Random(Rng& rng, int64_t n) {
  std::vector<float> values;
  for (int64_t i = 0; i < n; ++i) values.push_back(static_cast<float>(rng.Normal()));
  return values;
}

std::vector<uint16_t> Bf16(const std::vector<float>& values) {
  std::vector<uint16_t> bits;
  for (const float value : values) bits.push_back(ToBf16(value));
  return bits;
}

class KernelsTest : public ::testing::TestWithParam<const Kernels*> {};

std::vector<const Kernels*> All() {
  std::vector<const Kernels*> all;
  for (auto kernels = RunnableKernels(); *kernels != nullptr; ++kernels) all.push_back(*kernels);
  return all;
}

struct Product {
  std::vector<float> y;
  int64_t stride;
};

Product Multiply(const Kernels& kernels, const std::vector<float>& x, const std::vector<float>& w,
                 const std::vector<float>& bias, int64_t inputs, bool bf16, int64_t split) {
  const auto outputs = static_cast<int64_t>(bias.size()), rows = static_cast<int64_t>(x.size()) / inputs;
  const std::vector<uint16_t> narrow = Bf16(w);
  Product product = {std::vector<float>(static_cast<size_t>(rows * outputs), -7), outputs};
  Linear linear = {.x = x.data(),
                   .rows = rows,
                   .weight = bf16 ? static_cast<const void*>(narrow.data()) : w.data(),
                   .inputs = inputs,
                   .bias = bias.data(),
                   .y = product.y.data(),
                   .y_stride = outputs};
  for (int64_t begin = 0; begin < outputs; begin += split) {
    (bf16 ? kernels.linear_bf16 : kernels.linear_f32)(linear, begin, std::min(outputs, begin + split));
  }
  return product;
}

TEST_P(KernelsTest, ProductsOfAwkwardSizesAreThoseInDouble) {
  Rng rng(1);
  for (const int64_t inputs : {1, 15, 16, 17, 100, 1024, 1025, 2500}) {
    for (const int64_t rows : {1, 5, 6, 7, 17}) {
      const int64_t outputs = 1 + static_cast<int64_t>(rng.Below(150));
      const auto x = Random(rng, rows * inputs), w = Random(rng, outputs * inputs),
                 bias = Random(rng, outputs);
      for (const bool bf16 : {false, true}) {
        const Product product = Multiply(*GetParam(), x, w, bias, inputs, bf16, outputs);
        for (int64_t r = 0; r < rows; ++r) {
          for (int64_t o = 0; o < outputs; ++o) {
            double sum = bias[o], size = std::abs(sum);
            for (int64_t k = 0; k < inputs; ++k) {
              const double weight = bf16 ? FromBf16(ToBf16(w[o * inputs + k])) : w[o * inputs + k];
              sum += weight * x[r * inputs + k];
              size += std::abs(weight * x[r * inputs + k]);
            }
            ASSERT_NEAR(product.y[r * outputs + o], sum, 1e-6 * size)
                << inputs << " inputs, row " << r << " of " << rows << ", output " << o << " of " << outputs;
          }
        }
      }
    }
  }
}

TEST_P(KernelsTest, AttentionOverPagesIsTheSoftmaxInDouble) {
  Rng rng(3);
  for (const int64_t dim : {2, 16, 20, 64, 80, 128}) {
    const int32_t tokens = 1 + static_cast<int32_t>(rng.Below(200)),
                  group = 1 + static_cast<int32_t>(rng.Below(5));
    const int32_t rows = std::min<int32_t>(tokens, 1 + static_cast<int32_t>(rng.Below(16)));
    const KvShape shape = {1, 2, dim, 32, 8};
    const auto cache = *KvCache::Create(shape);
    const std::vector<PageId> pages = {5, 2, 7, 0, 1, 3, 4, 6};
    const auto keys = Random(rng, tokens * dim), values = Random(rng, tokens * dim);
    for (int32_t t = 0; t < tokens; ++t) {
      cache->Write(0, 1, pages[t / 32], t % 32, keys.data() + t * dim, values.data() + t * dim);
    }
    const auto q = Random(rng, rows * group * dim);
    std::vector<float> out(q.size()), scratch(static_cast<size_t>(AttentionScratch(rows, group, dim)));
    std::vector<int32_t> positions;
    for (int32_t r = 0; r < rows; ++r) positions.push_back(tokens - rows + r);
    Attention attention = {q.data(),
                           group * dim,
                           out.data(),
                           group * dim,
                           rows,
                           group,
                           static_cast<int32_t>(dim),
                           positions.data(),
                           cache->Keys(0, 1),
                           cache->Values(0, 1),
                           shape.page_stride(),
                           pages.data(),
                           32,
                           0.3f,
                           scratch.data()};
    GetParam()->attend(attention);
    for (int32_t i = 0; i < rows * group; ++i) {
      const int32_t last = positions[i / group];
      std::vector<double> wanted(static_cast<size_t>(dim), 0);
      double mass = 0;
      for (int32_t t = 0; t <= last; ++t) {
        double score = 0;
        for (int64_t d = 0; d < dim; ++d) score += static_cast<double>(q[i * dim + d]) * keys[t * dim + d];
        const double weight = std::exp(score * static_cast<double>(0.3f));
        mass += weight;
        for (int64_t d = 0; d < dim; ++d) wanted[d] += weight * values[t * dim + d];
      }
      for (int64_t d = 0; d < dim; ++d) {
        ASSERT_NEAR(out[i * dim + d], wanted[d] / mass, 2e-5)
            << dim << " wide, query " << i << ", " << tokens;
      }
    }
  }
}

TEST_P(KernelsTest, NormAndActivationAreThoseInDouble) {
  Rng rng(4);
  for (const int64_t n : {1, 16, 17, 100}) {
    const auto x = Random(rng, n), weight = Random(rng, n);
    std::vector<float> y(static_cast<size_t>(n));
    GetParam()->rms_norm(x.data(), weight.data(), y.data(), n, 1e-5f);
    double squares = 0;
    for (const float v : x) squares += static_cast<double>(v) * v;
    const double scale = 1 / std::sqrt(squares / static_cast<double>(n) + 1e-5);
    for (int64_t i = 0; i < n; ++i) ASSERT_NEAR(y[i], x[i] * scale * weight[i], 1e-5);
    std::vector<float> gate;
    for (int64_t i = 0; i < n; ++i) gate.push_back(static_cast<float>(60 * rng.Normal()));
    gate[0] = -200;
    const std::vector<float> before = gate;
    GetParam()->silu_mul(gate.data(), weight.data(), n);
    for (int64_t i = 0; i < n; ++i) {
      const double wanted = before[i] / (1 + std::exp(-static_cast<double>(before[i]))) * weight[i];
      ASSERT_NEAR(gate[i], wanted, 2e-6 * std::abs(wanted) + 1e-30) << before[i];
    }
  }
}

INSTANTIATE_TEST_SUITE_P(InstructionSets, KernelsTest, ::testing::ValuesIn(All()),
                         [](const auto& info) { return std::string(info.param->name); });

// With few or many items, and more or fewer threads than the machine has: each item once, in parts that do
// not overlap.
TEST(ThreadsTest, ForTakesEveryItemOnce) {
  for (const int32_t count : {1, 2, 3, 65}) {
    Threads threads(count);
    for (const int64_t n : {0, 1, 2, 7, 64, 1000}) {
      for (const int64_t size : {1, 1 << 10, 1 << 20}) {
        std::vector<std::atomic<int>> taken(static_cast<size_t>(n));
        std::atomic<int> parts = 0;
        threads.For(n, size, [&](int64_t begin, int64_t end) {
          ++parts;
          for (int64_t i = begin; i < end; ++i) ++taken[i];
        });
        for (const auto& times : taken) ASSERT_EQ(times, 1) << count << " threads, " << n << " of " << size;
        EXPECT_EQ(parts, n > 1 && n * size > 1 << 15 ? count : 1);
      }
    }
  }
}

TEST(ThreadsTest, EachTaskRunsOnceAndRunWaitsForAll) {
  Threads threads(4);
  std::vector<int> done(4);
  for (int round = 1; round <= 2000; ++round) {
    threads.Run([&](int32_t thread) { ++done[thread]; });
    for (const int count : done) ASSERT_EQ(count, round);
  }
}

}  // namespace
}  // namespace bfio::worker::cpu
