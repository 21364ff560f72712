// Matrix products summed in the order of a tree: each node equals the sum over its terms to the last bit.
#include <algorithm>
#include <string>
#include <vector>

#include "common/base/rng.h"
#include "gtest/gtest.h"
#include "worker/barrier/summation_tree.h"
#include "worker/engine/cpu/kernels.h"
#include "worker/engine/cpu/mlp.h"
#include "worker/engine/cpu/weights.h"

namespace bfio::worker::cpu {
namespace {

std::vector<float> RandomTerms(Rng& rng, int64_t n) {
  std::vector<float> values;
  for (int64_t i = 0; i < n; ++i) values.push_back(static_cast<float>(rng.Normal()));
  return values;
}

std::vector<const Kernels*> AllVersions() {
  std::vector<const Kernels*> all;
  for (auto kernels = RunnableKernels(); *kernels != nullptr; ++kernels) all.push_back(*kernels);
  return all;
}

// y = W x over all of `inputs`, by the ordinary product kernel.
std::vector<float> Plain(const Kernels& kernels, const std::vector<float>& x, const std::vector<float>& w,
                         int64_t rows, int64_t inputs, int64_t outputs, bool bf16) {
  std::vector<uint16_t> narrow;
  for (const float value : w) narrow.push_back(ToBf16(value));
  std::vector<float> y(static_cast<size_t>(rows * outputs));
  Linear linear = {.x = x.data(), .rows = rows};
  linear.x_stride = linear.inputs = inputs;
  linear.weight = bf16 ? static_cast<const void*>(narrow.data()) : w.data();
  linear.y = y.data();
  linear.y_stride = outputs;
  (bf16 ? kernels.linear_bf16 : kernels.linear_f32)(linear, 0, outputs);
  return y;
}

// The columns begin .. end - 1 of a matrix with `columns` columns.
std::vector<float> Columns(const std::vector<float>& matrix, int64_t columns, int64_t begin, int64_t end) {
  std::vector<float> some;
  for (size_t row = 0; row < matrix.size(); row += static_cast<size_t>(columns)) {
    some.insert(some.end(), matrix.begin() + static_cast<int64_t>(row) + begin,
                matrix.begin() + static_cast<int64_t>(row) + end);
  }
  return some;
}

struct Case {
  int64_t rows, width, outputs;
  std::vector<float> x, w;
  bool bf16;
};

std::vector<float> TermOf(const Kernels& kernels, const Case& c, int32_t term) {
  const int64_t begin = TermBegin(term, c.width), end = TermBegin(term + 1, c.width);
  if (begin == end) return std::vector<float>(static_cast<size_t>(c.rows * c.outputs), 0);
  return Plain(kernels, Columns(c.x, c.width, begin, end), Columns(c.w, c.width, begin, end), c.rows,
               end - begin, c.outputs, c.bf16);
}

std::vector<float> NodeOf(const Kernels& kernels, const Case& c, int32_t begin, int32_t end) {
  if (end - begin == 1) return TermOf(kernels, c, begin);
  const auto left = NodeOf(kernels, c, begin, (begin + end) / 2);
  auto right = NodeOf(kernels, c, (begin + end) / 2, end);
  for (size_t i = 0; i < right.size(); ++i) right[i] = left[i] + right[i];
  return right;
}

// The nodes of `range` computed as Mlp does, with the outputs in parts of `split`.
std::vector<float> Summed(const Kernels& kernels, const Case& c, TermRange range, int64_t split) {
  const int64_t begin = TermBegin(range.begin, c.width), end = TermBegin(range.end, c.width);
  std::vector<Term> terms;
  int32_t nodes = 0;
  for (const TermRange& node : NodesOf(range)) {
    for (int32_t term = node.begin; term < node.end; ++term) {
      terms.push_back({TermBegin(term, c.width) - begin, TermBegin(term + 1, c.width) - begin,
                       __builtin_ctz(static_cast<uint32_t>(term - node.begin + 1)),
                       term + 1 == node.end ? nodes : -1});
    }
    ++nodes;
  }
  const std::vector<float> x = Columns(c.x, c.width, begin, end);
  std::vector<uint16_t> narrow;
  for (const float value : c.w) narrow.push_back(ToBf16(value));
  std::vector<float> y(static_cast<size_t>(nodes * c.rows * c.outputs), -7),
      scratch(static_cast<size_t>(TermScratch(c.rows)));
  TermSum sum = {.x = x.data(),
                 .x_stride = end - begin,
                 .rows = c.rows,
                 .weight = c.bf16 ? static_cast<const void*>(narrow.data() + begin) : c.w.data() + begin,
                 .weight_stride = c.width,
                 .terms = terms.data(),
                 .count = static_cast<int32_t>(terms.size()),
                 .y = y.data(),
                 .node_stride = c.rows * c.outputs,
                 .y_stride = c.outputs,
                 .scratch = scratch.data()};
  for (int64_t at = 0; at < c.outputs; at += split) {
    (c.bf16 ? kernels.sum_terms_bf16 : kernels.sum_terms_f32)(sum, at, std::min(c.outputs, at + split));
  }
  return y;
}

class SumTermsTest : public ::testing::TestWithParam<const Kernels*> {};

INSTANTIATE_TEST_SUITE_P(Versions, SumTermsTest, ::testing::ValuesIn(AllVersions()),
                         [](const auto& info) { return std::string(info.param->name); });

TEST_P(SumTermsTest, EveryNodeIsTheTreeOverItsTerms) {
  Rng rng(5);
  // Widths below a vector, of fewer vectors than terms, with remainders, and with terms of several blocks.
  for (const int64_t width : {5, 72, 96, 144, 1000, 9000, 20'000}) {
    Case c = {.rows = 1 + static_cast<int64_t>(rng.Below(9)),
              .width = width,
              .outputs = 1 + static_cast<int64_t>(rng.Below(width > 5000 ? 20 : 200))};
    c.x = RandomTerms(rng, c.rows * width);
    c.w = RandomTerms(rng, c.outputs * width);
    for (const bool bf16 : {false, true}) {
      c.bf16 = bf16;
      for (const int world : {1, 2, 3, 5, 8}) {
        for (int rank = 0; rank < world; ++rank) {
          std::vector<float> wanted;
          for (const TermRange& node : NodesOf(TermsOf(rank, world))) {
            const auto one = NodeOf(*GetParam(), c, node.begin, node.end);
            wanted.insert(wanted.end(), one.begin(), one.end());
          }
          const int64_t split = rng.Below(2) == 0 ? c.outputs : 1 + static_cast<int64_t>(rng.Below(40));
          EXPECT_EQ(Summed(*GetParam(), c, TermsOf(rank, world), split), wanted)
              << "width " << width << ", rank " << rank << " of " << world;
        }
      }
    }
  }
}

TEST(TermBeginTest, TermsCoverTheWidthInWholeVectorsAndEvenly) {
  for (int64_t width = 1; width < 700; ++width) {
    EXPECT_EQ(TermBegin(0, width), 0);
    EXPECT_EQ(TermBegin(kSumTerms, width), width);
    const int64_t even = (width + kLanes * kSumTerms - 1) / (kLanes * kSumTerms) * kLanes;
    for (int32_t term = 0; term < kSumTerms; ++term) {
      const int64_t begin = TermBegin(term, width), end = TermBegin(term + 1, width);
      EXPECT_LE(begin, end);
      EXPECT_LE(end - begin, even);
      EXPECT_TRUE(end == width || end % kLanes == 0) << width;
    }
  }
  EXPECT_EQ(TermBegin(3, 14336), 3 * 14336 / kSumTerms);
}

}  // namespace
}  // namespace bfio::worker::cpu
