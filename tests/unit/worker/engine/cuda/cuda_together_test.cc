// The MLP sharded over a group of GPUs, without a GPU: each rank's whole backend runs on the emulator
// (tests/testing/emulated_ranks.h), with the tiny checkpoints of tests/golden. Not covered: CUDA, cuBLASLt
// and NCCL themselves.
#include <algorithm>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/cuda_together.h"
#include "tests/testing/decode_schedule.h"
#include "worker/engine/cuda/mlp_part.h"

namespace bfio::worker::gpu {
namespace {

using ::testing::ElementsAre;
using testing::EmulatedDevice;
using testing::EmulatedGroup;
using testing::Feed;
using testing::FeedGroup;
using testing::Golden;
using testing::GroupMember;
using testing::LoadGolden;
using testing::MemberEngine;
using testing::SharedOptions;

class CudaTogetherTest : public ::testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(Families, CudaTogetherTest,
                         ::testing::Values("llama", "llama_tied", "mistral", "qwen2", "qwen3"),
                         [](const auto& info) { return std::string(info.param); });

// The bounds are those of a backend with the whole MLP (cuda_backend_test.cc). The golden case runs on the
// first and on the last rank, in different chunks; the ranks between have other batches, or none.
TEST_P(CudaTogetherTest, LogitsAreWithinBf16OfTransformersFp32InGroupsOfAnySize) {
  const Golden golden(GetParam());
  const auto model = LoadGolden(GetParam());
  const int32_t prompt = golden.prompt;
  const int decodes = static_cast<int>(golden.tokens.size()) - prompt;
  const Feed first = {golden.tokens, {prompt, 1}},
             last = {golden.tokens, {0, prompt / 3, 0, prompt - prompt / 3, 1}};
  Feed other = {golden.tokens, {5, 0, 1, 1, 33, 0}};
  other.tokens.resize(40);
  const int steps = 4 + decodes;
  const std::vector<Feed> three = {first, other, last};
  for (const auto& [feeds, on_device] : {std::pair<std::vector<Feed>, bool>{{first}, false},
                                         {{first, last}, false},
                                         {three, false},
                                         {three, true},
                                         {{first, {{}, {0}}, other, last}, false}}) {
    SCOPED_TRACE(absl::StrCat(feeds.size(), " ranks, ", on_device ? "on the device" : "through the host"));
    const auto logits = FeedGroup(*model, feeds, steps, on_device);
    for (const size_t rank : {size_t{0}, feeds.size() - 1}) {
      // The last logits are those of the golden rows, which begin with the prompt's last row.
      const auto count = static_cast<size_t>(decodes + 1) * golden.vocab();
      ASSERT_GE(logits[rank].size(), count);
      const std::vector<float> got(logits[rank].end() - static_cast<ptrdiff_t>(count), logits[rank].end());
      const testing::GoldenDistance distance = DistanceTo(golden, got);
      EXPECT_LT(distance.relative_l2, golden.transformers_bf16) << "rank " << rank;
      EXPECT_GT(distance.relative_l2, 0) << "it was fp32";
      EXPECT_LT(distance.largest, 2 * golden.transformers_bf16_max) << "rank " << rank;
      int compared = 0;
      for (size_t row = 0; row < golden.top1.size(); ++row) {
        if (golden.margin[row] <= 2 * distance.largest) continue;
        const float* const begin = got.data() + row * golden.vocab();
        EXPECT_EQ(std::max_element(begin, begin + golden.vocab()) - begin, golden.top1[row]) << "row " << row;
        ++compared;
      }
      EXPECT_GE(compared, 10);
    }
    // Bit-equal here, where products do not depend on the rows of all ranks: results depend neither on the
    // rank nor on the other rows.
    if (feeds.size() > 1) {
      EXPECT_TRUE(std::equal(logits[0].rbegin(), logits[0].rbegin() + static_cast<ptrdiff_t>(golden.vocab()),
                             logits.back().rbegin()));
    }
  }
}

// Ranks beyond the number of the summation tree's terms have no columns, and others have one or several
// subtrees.
TEST(CudaTogetherGroupTest, RanksWithSeveralSubtreesOrNoneGiveTheSameLogitsToRounding) {
  const auto model = LoadGolden("llama_tied");
  const Golden golden("llama_tied");
  const Feed feed = {{golden.tokens.begin(), golden.tokens.begin() + 12}, {7, 1}};
  const std::vector<float> alone = FeedGroup(*model, {feed}, 6, false)[0];
  double size = 0;
  for (const float x : alone) size += static_cast<double>(x) * x;
  for (const auto& [ranks, on_device] : {std::pair{3, false}, {3, true}, {5, false}, {9, false}, {9, true}}) {
    SCOPED_TRACE(absl::StrCat(ranks, " ranks, ", on_device ? "on the device" : "through the host"));
    const auto logits = FeedGroup(*model, std::vector<Feed>(static_cast<size_t>(ranks), feed), 6, on_device);
    for (const std::vector<float>& got : logits) {
      ASSERT_EQ(got.size(), alone.size());
      double error = 0;
      for (size_t i = 0; i < got.size(); ++i) error += (got[i] - alone[i]) * (got[i] - alone[i]);
      // Sums of fp32 in another order, which mostly round to the same bf16.
      EXPECT_LT(std::sqrt(error / size), 2e-3);
      EXPECT_EQ(got, logits[0]);
    }
  }
}

TEST(CudaTogetherGroupTest, ANarrowMlpWithFewerVectorsThanTermsIsSharded) {
  ModelConfig config = LoadGolden("llama_tied")->config();
  config.intermediate = 24;
  const Feed feed = {{3, 1, 4, 1, 5, 9, 2, 6}, {5, 1}};
  std::vector<float> alone;
  for (const auto& [ranks, on_device] : {std::pair{1, false}, {3, false}, {3, true}}) {
    SCOPED_TRACE(absl::StrCat(ranks, " ranks, ", on_device ? "on the device" : "through the host"));
    EmulatedGroup group;
    group.ranks = ranks;
    group.on_device = on_device;
    RunEmulatedRanks(group, [&](int rank, Barrier& barrier) {
      EmulatedDevice device;
      auto ops = std::make_unique<testing::EmulatedDeviceOps>(device);
      auto weights = MakeRandomWeights(config, *ops);
      ASSERT_TRUE(weights.ok()) << weights.status();
      auto backend = CudaBackend::Create(SharedOptions(), config, std::move(ops), *std::move(weights),
                                         [](const std::string&) {});
      ASSERT_TRUE(backend.ok()) << backend.status();
      const auto got = FeedTogether(**backend, feed, 4, group.Spec(rank), barrier);
      ASSERT_TRUE(got.ok()) << got.status();
      if (alone.empty()) alone = *got;
      ASSERT_EQ(got->size(), alone.size());
      for (size_t i = 0; i < alone.size(); ++i) ASSERT_NEAR((*got)[i], alone[i], 0.02);
    });
  }
}

TEST(MlpPartTest, NodesAreWholeVectorsAndCoverAllColumns) {
  for (const int64_t intermediate : {8, 24, 72, 96, 8960, 14336, 18944}) {
    for (int ranks = 1; ranks <= 12; ++ranks) {
      int32_t next = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const MlpPart part = PartOf(rank, ranks, intermediate, false);
        EXPECT_EQ(part.nodes.size(), static_cast<size_t>(NodeCount(rank, ranks)));
        EXPECT_EQ(part.all.begin, next);
        for (const MlpColumns& node : part.nodes) {
          EXPECT_EQ(node.begin, next);
          EXPECT_EQ(node.begin % 8, 0);
          next = node.end;
        }
        EXPECT_EQ(part.all.end, next);
        EXPECT_THAT(PartOf(rank, ranks, intermediate, true).nodes, ElementsAre(part.all));
      }
      EXPECT_EQ(next, intermediate);
    }
  }
}

// --- engines ---

// Bit-equal here, as above, but only among groups of the same size: another size sums in another order.
TEST(CudaTogetherEngineTest, TokensInAGroupDoNotDependOnTheSchedule) {
  for (const auto& [name, ranks, on_device] : {std::tuple<const char*, int, bool>{"llama", 1, false},
                                               {"llama_tied", 2, false},
                                               {"llama_tied", 3, true},
                                               {"qwen2", 3, false},
                                               {"qwen3", 2, true},
                                               {"mistral", 4, false}}) {
    SCOPED_TRACE(absl::StrCat(name, ", ", ranks, " ranks"));
    const auto model = LoadGolden(name);
    EmulatedGroup group;
    group.ranks = ranks;
    group.on_device = on_device;
    RunEmulatedRanks(group, [&](int rank, Barrier& barrier) {
      GroupMember member(group.Spec(rank), barrier);
      std::vector<std::unique_ptr<EmulatedDevice>> devices;
      const auto make = [&]() -> std::unique_ptr<Engine> {
        DecodeOptions options = SharedOptions();
        // Each rank has other limits: the group pads to the largest batch.
        options.step_tokens = 20 + 13 * rank;
        devices.push_back(std::make_unique<EmulatedDevice>());
        return std::make_unique<MemberEngine>(testing::MakeSharedEngine(*model, options, *devices.back()),
                                              member);
      };
      const auto seed = static_cast<uint64_t>(10 * group.ranks + rank);
      EXPECT_GE(testing::RunSchedule(seed, make, {model->config().vocab, 40, 8, 4}), 1);
      // Other ranks may still be busy and need this rank's part of the MLP.
      const auto idle = testing::MakeSharedEngine(*model, SharedOptions(), *devices.front());
      StepOutput out;
      auto busy = member.Step(*idle, false, out);
      while (busy.ok() && *busy > 0) busy = member.Step(*idle, false, out);
      EXPECT_TRUE(busy.ok()) << busy.status();
    });
  }
}

}  // namespace
}  // namespace bfio::worker::gpu
