// The MLP sharded over a group: results are bit-equal to those of one rank with the whole MLP, for any group
// and after losses. Ranks are threads.
#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/barrier_ranks.h"
#include "tests/testing/decode_schedule.h"
#include "tests/testing/group_member.h"
#include "worker/barrier/step_peers.h"
#include "worker/engine/cpu/cpu_engine.h"

namespace bfio::worker {
namespace {

using testing::BarrierRanks;
using testing::GroupMember;
using testing::MemberEngine;
using testing::Stream;

constexpr absl::Duration kForever = BarrierRanks::kForever;
constexpr int32_t kPageTokens = 32;
constexpr int32_t kPages = 8;

std::shared_ptr<const cpu::Weights> Load(const std::string& name,
                                         cpu::Storage storage = cpu::Storage::kAuto) {
  auto weights = LoadCpuWeights("tests/golden/" + name, storage);
  EXPECT_TRUE(weights.ok()) << weights.status();
  return *std::move(weights);
}

cpu::Forward MakeForward(const std::shared_ptr<const cpu::Weights>& weights, int32_t threads) {
  const ModelConfig& config = weights->config();
  const cpu::KvShape shape = {config.layers, config.kv_heads, config.head_dim, kPageTokens, kPages, false};
  return cpu::Forward(weights, *cpu::KvCache::Create(shape), cpu::BestKernels(), threads, 128, 128);
}

// A plan for the next `size` tokens of a sequence, with logits of every row.
StepPlan Chunk(const std::vector<uint32_t>& tokens, size_t at, size_t size) {
  std::vector<PageId> pages;
  for (PageId page = 0; page < kPages; ++page) pages.push_back(kPages - 1 - page);
  StepPlan plan;
  plan.Clear();
  plan.AddRun(0, static_cast<int64_t>(at), absl::MakeConstSpan(tokens).subspan(at, size), pages, false);
  for (int32_t row = 0; row < plan.rows(); ++row) plan.logit_rows.push_back(row);
  return plan;
}

std::vector<uint32_t> Tokens(int rank) {
  Rng rng(static_cast<uint64_t>(rank) + 40);
  std::vector<uint32_t> tokens(30 + 17 * static_cast<size_t>(rank % 3));
  for (uint32_t& token : tokens) token = static_cast<uint32_t>(rng.Below(256));
  return tokens;
}

// Sizes of the chunks of a rank's prompt, by step; 0: the rank has no work in this step.
std::vector<size_t> Cuts(int rank) {
  if (rank % 4 == 1) return {0, 0, 33, 0, 5, 1, 1};
  if (rank % 4 == 2) return {1, 1, 1, 16, 7};
  if (rank % 4 == 3) return {};  // idle in all steps
  return {128};
}

class TogetherTest : public ::testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(Families, TogetherTest,
                         ::testing::Values("llama", "llama_tied", "mistral", "qwen2", "qwen3"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(TogetherTest, LogitsOfEveryRankAreBitEqualToOneRanks) {
  for (const auto storage : {cpu::Storage::kFp32, cpu::Storage::kBf16}) {
    const auto weights = Load(GetParam(), storage);
    for (const auto& [kind, ranks] : std::vector<std::pair<std::string, int>>{{"local", 1},
                                                                              {"local", 2},
                                                                              {"star", 3},
                                                                              {"star", 4},
                                                                              {"local", 5},
                                                                              {"tree", 8},
                                                                              {"local", 11}}) {
      SCOPED_TRACE(::testing::Message() << ranks << " ranks, " << kind);
      BarrierRanks(kind, ranks).Run(1, [&](int rank, std::unique_ptr<Barrier> barrier) {
        cpu::Forward whole = MakeForward(weights, 1), part = MakeForward(weights, 1 + rank % 2);
        const std::vector<uint32_t> tokens = Tokens(rank);
        const auto logits = whole.Run(Chunk(tokens, 0, tokens.size()));
        const std::vector<float> wanted(logits.begin(), logits.end());
        std::vector<float> got;
        size_t at = 0;
        const std::vector<size_t> cuts = Cuts(rank);
        for (size_t step = 1; step <= 7; ++step) {
          size_t size = step <= cuts.size() ? cuts[step - 1] : 0;
          size = std::min(size, tokens.size() - at);
          const auto agreed =
              barrier->AllReduce(static_cast<int64_t>(step), {.rows = static_cast<int64_t>(size)}, kForever);
          ASSERT_TRUE(agreed.ok()) << agreed.status();
          StepPeers peers({1, rank, ranks, ""}, *barrier, static_cast<int64_t>(step), agreed->max_rows,
                          kForever);
          StepPlan plan;
          plan.Clear();
          if (size > 0) plan = Chunk(tokens, at, size);
          const auto step_logits = part.RunTogether(plan, peers);
          ASSERT_TRUE(step_logits.ok()) << step_logits.status();
          got.insert(got.end(), step_logits->begin(), step_logits->end());
          at += size;
        }
        ASSERT_LE(got.size(), wanted.size());
        EXPECT_EQ(got.size(), at * static_cast<size_t>(weights->config().vocab));
        EXPECT_TRUE(std::equal(got.begin(), got.end(), wanted.begin())) << "rank " << rank;
      });
    }
  }
}

CpuOptions Options(bool share_mlp) {
  CpuOptions options;
  options.decode.limits = {6, 600, 1000};
  options.decode.step_tokens = 40;
  options.decode.share_mlp = share_mlp;
  return options;
}

std::unique_ptr<DecodeEngine> Make(const CpuOptions& options, std::shared_ptr<const cpu::Weights> weights) {
  auto engine = MakeCpuEngine(options, std::move(weights));
  EXPECT_TRUE(engine.ok()) << engine.status();
  return *std::move(engine);
}

TEST_P(TogetherTest, TokensAndLogProbabilitiesDoNotDependOnTheSchedule) {
  const auto weights = Load(GetParam());
  for (const int ranks : {1, 2, 3, 4, 8}) {
    SCOPED_TRACE(::testing::Message() << ranks << " ranks");
    BarrierRanks group(ranks % 2 == 0 ? "star" : "local", ranks);
    group.Run(1, [&](int rank, std::unique_ptr<Barrier> barrier) {
      GroupMember member({1, rank, ranks, ""}, *barrier);
      // The first engine has the whole MLP and runs every request alone, which gives the expected tokens.
      bool alone = true;
      const auto make = [&]() -> std::unique_ptr<Engine> {
        CpuOptions options = Options(!alone);
        options.decode.step_tokens = 20 + 7 * rank;
        if (std::exchange(alone, false)) return Make(options, weights);
        return std::make_unique<MemberEngine>(Make(options, weights), member);
      };
      const auto seed = static_cast<uint64_t>(10 * ranks + rank);
      EXPECT_GT(testing::RunSchedule(seed, make, {weights->config().vocab, 60, 20, 10}), 2);
      // Other ranks may still be busy and need this rank's part of the MLP.
      const auto idle = Make(Options(true), weights);
      StepOutput out;
      for (auto busy = member.Step(*idle, false, out); busy.ok() && *busy > 0;) {
        busy = member.Step(*idle, false, out);
      }
    });
  }
}

// A barrier whose rank leaves the group in its `calls`-th call.
class DyingBarrier final : public Barrier {
 public:
  DyingBarrier(std::unique_ptr<Barrier> inner, int calls) : inner_(std::move(inner)), calls_(calls) {}

  absl::StatusOr<GroupView> AllReduce(int64_t step, const Contribution& mine,
                                      absl::Duration timeout) override {
    if (Dies()) return absl::UnavailableError("died");
    return inner_->AllReduce(step, mine, timeout);
  }
  absl::Status AllGather(int64_t step, absl::Span<const float> mine, absl::Span<float> all,
                         absl::Duration timeout) override {
    if (Dies()) return absl::UnavailableError("died");
    return inner_->AllGather(step, mine, all, timeout);
  }
  absl::Status ReduceScatter(int64_t step, absl::Span<const float> mine, absl::Span<float> sum,
                             absl::Duration timeout) override {
    if (Dies()) return absl::UnavailableError("died");
    return inner_->ReduceScatter(step, mine, sum, timeout);
  }
  void Abort() override { inner_->Abort(); }

 private:
  bool Dies() {
    if (--calls_ == 0) inner_.reset();
    return calls_ <= 0;
  }

  std::unique_ptr<Barrier> inner_;
  int calls_;
};

// A rank's engine and received tokens over several epochs.
struct Life {
  std::unique_ptr<DecodeEngine> engine;
  std::map<Handle, Stream> got;
};

// Runs one epoch of `lives`, until no request is active, `steps` steps are done, or the last rank leaves in
// its `dies`-th call.
void RunEpoch(const std::string& kind, uint64_t epoch, std::vector<Life>& lives, int steps,
              std::optional<int> dies) {
  const int ranks = static_cast<int>(lives.size());
  BarrierRanks(kind, ranks).Run(epoch, [&](int rank, std::unique_ptr<Barrier> barrier) {
    if (dies && rank == ranks - 1) barrier = std::make_unique<DyingBarrier>(std::move(barrier), *dies);
    GroupMember member({epoch, rank, ranks, ""}, *barrier);
    Life& life = lives[rank];
    StepOutput out;
    for (int step = 0; step < steps; ++step) {
      const auto before = life.engine->resident();
      const auto busy = member.Step(*life.engine, life.engine->active() > 0, out);
      if (!busy.ok()) {
        EXPECT_TRUE(dies.has_value()) << busy.status();
        ASSERT_EQ(before.size(), life.engine->resident().size());
        for (size_t i = 0; i < before.size(); ++i) {
          EXPECT_EQ(before[i].generated_tokens, life.engine->resident()[i].generated_tokens);
        }
        return;
      }
      for (size_t i = 0; i < out.tokens.size(); ++i) {
        Stream& stream = life.got[out.tokens[i].handle];
        stream.tokens.push_back(out.tokens[i].id);
        stream.log_probabilities.push_back(out.log_probabilities[i]);
      }
      if (*busy == 0) return;
    }
  });
}

TEST_P(TogetherTest, AnAbortedStepIsRepeatedWithTheSameResult) {
  const auto weights = Load(GetParam());
  const int calls = 1 + 2 * static_cast<int>(weights->config().layers);
  const auto whole = Make(Options(false), weights);
  // The last rank leaves in any call of its fourth step, in which prompts and decodes mix.
  for (int call = 3 * calls + 1; call <= 4 * calls; ++call) {
    SCOPED_TRACE(::testing::Message() << "call " << call);
    Rng rng(static_cast<uint64_t>(call));
    std::vector<Life> lives(3);
    std::map<Handle, Stream> wanted;
    Handle handle = 0;
    for (Life& life : lives) {
      life.engine = Make(Options(true), weights);
      for (int i = 0; i < 3; ++i) {
        const SequenceRequest request =
            testing::RandomRequest(rng, ++handle, weights->config().vocab, 100, 20);
        wanted[request.handle] = testing::RunAlone(*whole, request);
        ASSERT_TRUE(life.engine->Admit(request).ok());
      }
    }
    const std::string kind = call % 2 == 0 ? "star" : "local";
    RunEpoch(kind, 1, lives, 1 << 20, call);
    // The lost rank's requests are not placed again here; a router would do so.
    for (Handle lost = handle - 2; lost <= handle; ++lost) wanted.erase(lost);
    lives.pop_back();
    RunEpoch(kind, 2, lives, 3, std::nullopt);
    // Two ranks join, so the MLP is divided anew.
    for (int i = 0; i < 2; ++i) lives.emplace_back().engine = Make(Options(true), weights);
    RunEpoch(kind, 3, lives, 1 << 20, std::nullopt);
    std::map<Handle, Stream> got;
    for (const Life& life : lives) got.insert(life.got.begin(), life.got.end());
    ASSERT_EQ(got.size(), wanted.size());
    for (const auto& [one, stream] : wanted) {
      EXPECT_EQ(got[one].tokens, stream.tokens);
      EXPECT_EQ(got[one].log_probabilities, stream.log_probabilities);
    }
  }
}

TEST(TogetherEngineTest, OnlyRanksWithTheSameWeightsHaveTheSameSignature) {
  const auto signature = [](const std::string& name, cpu::Storage storage) {
    const auto engine = Make(Options(true), Load(name, storage));
    EXPECT_TRUE(engine->together());
    return engine->signature();
  };
  const uint64_t llama = signature("llama", cpu::Storage::kFp32);
  EXPECT_NE(llama, 0u);
  EXPECT_EQ(llama, signature("llama", cpu::Storage::kFp32));
  EXPECT_NE(llama, signature("llama", cpu::Storage::kBf16));
  for (const char* other : {"llama_tied", "mistral", "qwen2", "qwen3"}) {
    EXPECT_NE(llama, signature(other, cpu::Storage::kFp32)) << other;
  }
  const auto whole = Make(Options(false), Load("llama"));
  EXPECT_FALSE(whole->together());
  EXPECT_EQ(whole->signature(), 0u);
}

TEST(TogetherEngineTest, ABatchAboveTheAgreedSizeIsAnErrorOfItsEngine) {
  const auto engine = Make(Options(true), Load("llama"));
  Rng rng(1);
  ASSERT_TRUE(engine->Admit(testing::RandomRequest(rng, 1, 256, 10, 5)).ok());
  BarrierRanks("local", 1).Run(1, [&](int rank, std::unique_ptr<Barrier> barrier) {
    StepPeers peers({1, rank, 1, ""}, *barrier, 1, 0, kForever);
    StepOutput out;
    EXPECT_TRUE(absl::IsInternal(engine->StepTogether(peers, out)));
    EXPECT_TRUE(peers.status().ok());
  });
}

}  // namespace
}  // namespace bfio::worker
