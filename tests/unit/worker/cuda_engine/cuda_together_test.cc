// The MLP shared out over a group of GPUs, without a GPU: each rank's whole backend runs on the emulator
// (tests/testing/emulated_ranks.h), over the tiny checkpoints of tests/golden. What is not covered: CUDA,
// cuBLASLt and NCCL themselves.
#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/decode_schedule.h"
#include "tests/testing/emulated_device_ops.h"
#include "tests/testing/emulated_ranks.h"
#include "tests/testing/golden.h"
#include "worker/barrier/step_peers.h"
#include "worker/engine/cuda/cuda_backend.h"
#include "worker/engine/cuda/mlp_part.h"
#include "worker/engine/model/model.h"

namespace bfio::worker::gpu {
namespace {

using ::testing::ElementsAre;
using testing::EmulatedDevice;
using testing::Golden;
using ::testing::HasSubstr;
using testing::RunEmulatedRanks;
using testing::Stream;

constexpr absl::Duration kLongEnough = testing::BarrierRanks::kForever;

DecodeOptions SharedOptions() {
  DecodeOptions options;
  options.limits = {6, 600, 1000};
  options.page_tokens = 16;
  options.step_tokens = 48;
  options.share_mlp = true;
  return options;
}

std::shared_ptr<const Model> LoadGolden(const std::string& name) {
  auto model = LoadModel(testing::GoldenFolder(name));
  EXPECT_TRUE(model.ok()) << model.status();
  return *std::move(model);
}

std::unique_ptr<CudaBackend> MakeBackend(const Model& model, const DecodeOptions& options,
                                         EmulatedDevice& device) {
  auto ops = std::make_unique<testing::EmulatedDeviceOps>(device);
  const Progress quiet = [](const std::string&) {};
  auto weights = UploadWeights(model, *ops, quiet);
  EXPECT_TRUE(weights.ok()) << weights.status();
  auto backend = CudaBackend::Create(options, model.config(), std::move(ops), *std::move(weights), quiet);
  EXPECT_TRUE(backend.ok()) << backend.status();
  return *std::move(backend);
}

std::unique_ptr<DecodeEngine> MakeSharedEngine(const Model& model, const DecodeOptions& options,
                                               EmulatedDevice& device) {
  auto engine = DecodeEngine::Create(options, MakeBackend(model, options, device));
  EXPECT_TRUE(engine.ok()) << engine.status();
  return *std::move(engine);
}

// --- logits ---

std::vector<float> LogitsOf(CudaBackend& backend, int32_t draws) {
  const int64_t count = draws * backend.facts().vocab;
  const auto bytes = static_cast<int64_t>(count * sizeof(float));
  const auto pinned = backend.ops().AllocatePinned(bytes, "logits");
  EXPECT_TRUE(pinned.ok()) << pinned.status();
  EXPECT_TRUE(backend.ops().CopyOut(*pinned, backend.forward().logits(), bytes).ok());
  const auto* const from = static_cast<const float*>(*pinned);
  std::vector<float> logits(from, from + count);
  EXPECT_TRUE(backend.ops().Release(*pinned).ok());
  return logits;
}

// A rank that is fed a sequence in pieces, 0: it has no rows in that step. The last piece repeats.
struct Feed {
  std::vector<uint32_t> tokens;
  std::vector<int32_t> pieces;
};

// The logits of every piece's last token, or an error.
absl::StatusOr<std::vector<float>> FeedTogether(CudaBackend& backend, const Feed& feed, int steps,
                                                const GroupSpec& group, Barrier& barrier) {
  std::vector<PageId> pages;
  for (PageId page = 0; page < 8; ++page) pages.push_back(17 - 2 * page);
  std::vector<float> logits;
  size_t at = 0;
  for (int step = 1; step <= steps; ++step) {
    const auto which = std::min<size_t>(static_cast<size_t>(step), feed.pieces.size()) - 1;
    const auto size = std::min<size_t>(feed.pieces[which], feed.tokens.size() - at);
    StepPlan plan;
    plan.Clear();
    if (size > 0) {
      plan.AddRun(0, static_cast<int64_t>(at), absl::MakeConstSpan(feed.tokens).subspan(at, size), pages,
                  true);
    }
    const auto agreed = barrier.AllReduce(step, {.rows = static_cast<int64_t>(size)}, kLongEnough);
    if (!agreed.ok()) return agreed.status();
    StepPeers peers(group, barrier, step, agreed->max_rows, kLongEnough);
    const std::vector<worker::Draw> draws(size > 0 ? 1 : 0);
    std::vector<Drawn> drawn(draws.size());
    const absl::Status status = backend.RunTogether(plan, draws, absl::MakeSpan(drawn), peers);
    if (!status.ok()) return status;
    at += size;
    if (size == 0) continue;
    const std::vector<float> row = LogitsOf(backend, 1);
    EXPECT_EQ(drawn[0].id, static_cast<uint32_t>(std::max_element(row.begin(), row.end()) - row.begin()));
    logits.insert(logits.end(), row.begin(), row.end());
  }
  EXPECT_TRUE(feed.pieces == std::vector<int32_t>{0} || at == feed.tokens.size());
  return logits;
}

// Logits by rank, of a group in which all begin anew.
std::vector<std::vector<float>> FeedGroup(const Model& model, const std::vector<Feed>& feeds, int steps) {
  const auto ranks = static_cast<int>(feeds.size());
  std::vector<std::vector<float>> logits(feeds.size());
  RunEmulatedRanks(ranks, 1, 0, [&](int rank, Barrier& barrier) {
    EmulatedDevice device;
    const auto backend = MakeBackend(model, SharedOptions(), device);
    auto got = FeedTogether(*backend, feeds[rank], steps, {1, rank, ranks, ""}, barrier);
    ASSERT_TRUE(got.ok()) << got.status();
    logits[rank] = *std::move(got);
    EXPECT_EQ(device.replays, 0);
  });
  return logits;
}

class CudaTogetherTest : public ::testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(Families, CudaTogetherTest,
                         ::testing::Values("llama", "llama_tied", "mistral", "qwen2", "qwen3"),
                         [](const auto& info) { return std::string(info.param); });

// Bounds are those of a backend that has all of the MLP (cuda_backend_test.cc). The golden case runs on the
// first and on the last rank, cut differently; ranks between have other batches, or none.
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
  for (const std::vector<Feed>& feeds :
       {std::vector<Feed>{first}, {first, last}, {first, other, last}, {first, {{}, {0}}, other, last}}) {
    SCOPED_TRACE(absl::StrCat(feeds.size(), " ranks"));
    const auto logits = FeedGroup(*model, feeds, steps);
    for (const size_t rank : {size_t{0}, feeds.size() - 1}) {
      // Of every piece; the golden rows begin with the prompt's last.
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
    // Bit-equal here, where products do not depend on the rows of all ranks: neither place nor company shows.
    if (feeds.size() > 1) {
      EXPECT_TRUE(std::equal(logits[0].rbegin(), logits[0].rbegin() + static_cast<ptrdiff_t>(golden.vocab()),
                             logits.back().rbegin()));
    }
  }
}

// Ranks beyond the summation tree's terms have no part, and others one of several subtrees.
TEST(CudaTogetherGroupTest, RanksWithSeveralSubtreesOrNoneGiveTheSameLogitsToRounding) {
  const auto model = LoadGolden("llama_tied");
  const Golden golden("llama_tied");
  const Feed feed = {{golden.tokens.begin(), golden.tokens.begin() + 12}, {7, 1}};
  const std::vector<float> alone = FeedGroup(*model, {feed}, 6)[0];
  double size = 0;
  for (const float x : alone) size += static_cast<double>(x) * x;
  for (const int ranks : {3, 5, 9}) {
    SCOPED_TRACE(ranks);
    const auto logits = FeedGroup(*model, std::vector<Feed>(static_cast<size_t>(ranks), feed), 6);
    for (const std::vector<float>& got : logits) {
      ASSERT_EQ(got.size(), alone.size());
      double error = 0;
      for (size_t i = 0; i < got.size(); ++i) error += (got[i] - alone[i]) * (got[i] - alone[i]);
      // Sums of fp32 in another order, which bf16 mostly rounds to the same.
      EXPECT_LT(std::sqrt(error / size), 2e-3);
      EXPECT_EQ(got, logits[0]);
    }
  }
}

TEST(CudaTogetherGroupTest, AnMlpTooNarrowForAllTermsIsSharedOutAllTheSame) {
  ModelConfig config = LoadGolden("llama_tied")->config();
  config.intermediate = 24;
  const Feed feed = {{3, 1, 4, 1, 5, 9, 2, 6}, {5, 1}};
  std::vector<float> alone;
  for (const int ranks : {1, 3}) {
    SCOPED_TRACE(ranks);
    RunEmulatedRanks(ranks, 1, 0, [&](int rank, Barrier& barrier) {
      EmulatedDevice device;
      auto ops = std::make_unique<testing::EmulatedDeviceOps>(device);
      auto weights = MakeRandomWeights(config, *ops);
      ASSERT_TRUE(weights.ok()) << weights.status();
      auto backend = CudaBackend::Create(SharedOptions(), config, std::move(ops), *std::move(weights),
                                         [](const std::string&) {});
      ASSERT_TRUE(backend.ok()) << backend.status();
      const auto got = FeedTogether(**backend, feed, 4, {1, rank, ranks, ""}, barrier);
      ASSERT_TRUE(got.ok()) << got.status();
      if (alone.empty()) alone = *got;
      ASSERT_EQ(got->size(), alone.size());
      for (size_t i = 0; i < alone.size(); ++i) ASSERT_NEAR((*got)[i], alone[i], 0.02);
    });
  }
}

TEST(MlpPartTest, NodesAreWholeVectorsInOrderAndAllColumnsAreSomebodys) {
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

// A rank's place in a group.
class EmulatedSeat {
 public:
  EmulatedSeat(const GroupSpec& group, Barrier& barrier) : group_(group), barrier_(barrier) {}

  // One step of all; returns how many ranks have said that they are busy.
  absl::StatusOr<int64_t> Step(Engine& engine, bool busy, StepOutput& out) {
    const auto agreed = barrier_.AllReduce(++step_, {.active = busy, .rows = engine.NextRows()}, kLongEnough);
    if (!agreed.ok()) return agreed.status();
    StepPeers peers(group_, barrier_, step_, agreed->max_rows, kLongEnough);
    const absl::Status status = engine.StepTogether(peers, out);
    EXPECT_EQ(status, peers.status()) << "no fault of the engine's";
    if (!status.ok()) return status;
    return agreed->sum_active;
  }

 private:
  const GroupSpec group_;
  Barrier& barrier_;
  int64_t step_ = 0;
};

// A rank's engine as one that steps by itself, so that RunSchedule can drive it: the others step when it
// does.
class EmulatedSeatEngine final : public Engine {
 public:
  EmulatedSeatEngine(std::unique_ptr<Engine> engine, EmulatedSeat& seat)
      : engine_(std::move(engine)), seat_(seat) {}

  absl::string_view name() const override { return engine_->name(); }
  const EngineLimits& limits() const override { return engine_->limits(); }
  absl::Status Admit(const SequenceRequest& request) override { return engine_->Admit(request); }
  bool Cancel(Handle handle) override { return engine_->Cancel(handle); }
  absl::Status Step(StepOutput& out) override { return seat_.Step(*engine_, true, out).status(); }
  int32_t active() const override { return engine_->active(); }
  int32_t free_slots() const override { return engine_->free_slots(); }
  int64_t free_kv_tokens() const override { return engine_->free_kv_tokens(); }
  std::vector<ResidentSequence> resident() const override { return engine_->resident(); }

 private:
  const std::unique_ptr<Engine> engine_;
  EmulatedSeat& seat_;
};

// Bit-equal here, as above; in groups of one size alone, for another cuts the sums otherwise.
TEST(CudaTogetherEngineTest, TokensAreThoseOfTheRequestAloneInTheGroupOnRandomSchedules) {
  for (const auto& [name, ranks] : {std::pair<const char*, int>{"llama", 1},
                                    {"llama_tied", 2},
                                    {"qwen2", 3},
                                    {"qwen3", 3},
                                    {"mistral", 4}}) {
    SCOPED_TRACE(absl::StrCat(name, ", ", ranks, " ranks"));
    const auto model = LoadGolden(name);
    const int world_size = ranks;
    RunEmulatedRanks(ranks, 1, 0, [&](int rank, Barrier& barrier) {
      EmulatedSeat seat({1, rank, world_size, ""}, barrier);
      std::vector<std::unique_ptr<EmulatedDevice>> devices;
      const auto make = [&]() -> std::unique_ptr<Engine> {
        DecodeOptions options = SharedOptions();
        // Other limits on each rank: the group pads to the largest batch all the same.
        options.step_tokens = 20 + 13 * rank;
        devices.push_back(std::make_unique<EmulatedDevice>());
        return std::make_unique<EmulatedSeatEngine>(MakeSharedEngine(*model, options, *devices.back()), seat);
      };
      const auto seed = static_cast<uint64_t>(10 * world_size + rank);
      EXPECT_GE(testing::RunSchedule(seed, make, {model->config().vocab, 40, 8, 4}), 1);
      // The others may still be busy, and need this rank's part.
      const auto idle = MakeSharedEngine(*model, SharedOptions(), *devices.front());
      StepOutput out;
      for (auto busy = seat.Step(*idle, false, out); busy.ok() && *busy > 0;) {
        busy = seat.Step(*idle, false, out);
      }
    });
  }
}

// --- what happens to groups ---

// A rank over several epochs.
struct EmulatedLife {
  std::unique_ptr<EmulatedDevice> device = std::make_unique<EmulatedDevice>();
  std::unique_ptr<DecodeEngine> engine;
  std::map<Handle, Stream> got;
};

// One epoch of `lives`, until nobody is active, `steps` steps are made, or the last rank leaves in its
// `dies`-th call.
void RunLives(uint64_t epoch, std::vector<EmulatedLife>& lives, int steps, int dies) {
  const auto ranks = static_cast<int>(lives.size());
  RunEmulatedRanks(ranks, epoch, dies, [&](int rank, Barrier& barrier) {
    EmulatedSeat seat({epoch, rank, ranks, ""}, barrier);
    EmulatedLife& life = lives[rank];
    StepOutput out;
    for (int step = 0; step < steps; ++step) {
      const auto busy = seat.Step(*life.engine, life.engine->active() > 0, out);
      if (!busy.ok()) {
        EXPECT_GT(dies, 0) << busy.status();
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

constexpr int kStepsBefore = 3;

// Three ranks, of which the last leaves: after kStepsBefore steps, or in a call of the next one (`dies`,
// counted from that step's first). Two go on, and two newcomers join them.
std::map<Handle, Stream> LivesWithALoss(const Model& model, int calls, int dies, int recruits) {
  Rng rng(7);
  std::vector<EmulatedLife> lives(3);
  Handle handle = 0;
  for (EmulatedLife& life : lives) {
    life.engine = MakeSharedEngine(model, SharedOptions(), *life.device);
    for (int i = 0; i < 3; ++i) {
      EXPECT_TRUE(
          life.engine->Admit(testing::RandomRequest(rng, ++handle, model.config().vocab, 90, 9)).ok());
    }
  }
  if (dies > 0) {
    RunLives(1, lives, kStepsBefore + 1, kStepsBefore * calls + dies);
  } else {
    RunLives(1, lives, kStepsBefore, 0);
  }
  // What the last rank had is lost; the router would place it anew.
  lives.pop_back();
  RunLives(2, lives, 2, 0);
  for (int i = 0; i < recruits; ++i) {
    lives.emplace_back().engine = MakeSharedEngine(model, SharedOptions(), *lives.back().device);
  }
  RunLives(3, lives, 1 << 20, 0);
  std::map<Handle, Stream> got;
  for (const EmulatedLife& life : lives) {
    got.insert(life.got.begin(), life.got.end());
    EXPECT_EQ(life.engine->active(), 0);
  }
  return got;
}

// To the last bit: the same steps in groups of the same sizes, one of which was begun twice.
void ExpectALossChangesNothing(const Model& model) {
  const int calls = 1 + 2 * static_cast<int>(model.config().layers);
  const auto wanted = LivesWithALoss(model, calls, 0, 2);
  ASSERT_EQ(wanted.size(), 6u);
  for (int dies = 1; dies <= calls; ++dies) {
    SCOPED_TRACE(absl::StrCat("call ", dies));
    auto got = LivesWithALoss(model, calls, dies, 2);
    ASSERT_EQ(got.size(), wanted.size());
    for (const auto& [handle, stream] : wanted) {
      EXPECT_EQ(got[handle].tokens, stream.tokens);
      EXPECT_EQ(got[handle].log_probabilities, stream.log_probabilities);
    }
  }
}

TEST(CudaTogetherLossTest, AStepThatPeersBreakOffIsMadeAgainInTheNextEpochWithTheSameOutcome) {
  ExpectALossChangesNothing(*LoadGolden("llama_tied"));
}

TEST(CudaTogetherLossTest, WhatGroupsAndBatchesHaveNeededOnceIsNotAllocatedOrChosenAgain) {
  const auto model = LoadGolden("llama");
  const Golden golden("llama");
  const Feed feed = {{golden.tokens.begin(), golden.tokens.begin() + 30}, {20, 9, 1}};
  std::vector<EmulatedDevice> devices(2);
  std::vector<std::unique_ptr<CudaBackend>> backends;
  for (EmulatedDevice& device : devices) {
    backends.push_back(MakeBackend(*model, SharedOptions(), device));
  }
  const auto run = [&](uint64_t epoch, int ranks) {
    RunEmulatedRanks(ranks, epoch, 0, [&](int rank, Barrier& barrier) {
      const auto got = FeedTogether(*backends[rank], feed, 3, {epoch, rank, ranks, ""}, barrier);
      EXPECT_TRUE(got.ok()) << got.status();
    });
  };
  const auto taken = [&](int rank) {
    EmulatedDevice& device = devices[rank];
    const int64_t free = backends[rank]->ops().Memory()->free_bytes;
    return std::pair(device.prepared.size(), free);
  };
  const auto made = taken(0);
  run(1, 2);
  EXPECT_GT(taken(0).first, made.first);
  EXPECT_LT(taken(0).second, made.second);
  run(2, 1);
  const auto first = taken(0), second = taken(1);
  // The logits are read through memory of their own.
  const int allocations = devices[0].allocations;
  for (uint64_t epoch = 3; epoch < 7; epoch += 2) {
    run(epoch, 2);
    run(epoch + 1, 1);
  }
  EXPECT_EQ(taken(0), first);
  EXPECT_EQ(taken(1), second);
  EXPECT_EQ(devices[0].allocations - allocations, 4 * 3);
}

TEST(CudaTogetherLossTest, ADevicesErrorIsTheEnginesEndForGood) {
  const auto model = LoadGolden("llama");
  EmulatedDevice device;
  const auto backend = MakeBackend(*model, SharedOptions(), device);
  const Feed feed = {{1, 2, 3}, {1}};
  RunEmulatedRanks(1, 1, 0, [&](int rank, Barrier& barrier) {
    device.failing_wait = device.waits + 3;
    const auto first = FeedTogether(*backend, feed, 3, {1, rank, 1, ""}, barrier);
    EXPECT_EQ(first.status().code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(std::string(first.status().message()), HasSubstr("cudaEventQuery"));
    device.failing_wait = -1;
    EXPECT_EQ(FeedTogether(*backend, feed, 3, {1, rank, 1, ""}, barrier).status(), first.status());
  });
}

TEST(CudaTogetherLossTest, WhatCannotBeSharedOutIsRefused) {
  const auto model = LoadGolden("llama_tied");
  EmulatedDevice device;
  const auto backend = MakeBackend(*model, SharedOptions(), device);
  EXPECT_EQ(backend->Run({}, {}, {}).code(), absl::StatusCode::kFailedPrecondition);
  RunEmulatedRanks(1, 1, 0, [&](int rank, Barrier& barrier) {
    StepPlan plan;
    plan.Clear();
    plan.AddRun(0, 0, std::vector<uint32_t>{1}, std::vector<PageId>{0}, false);
    StepPeers none({1, rank, 1, ""}, barrier, 1, 0, kLongEnough);
    EXPECT_EQ(backend->RunTogether(plan, {}, {}, none).code(), absl::StatusCode::kInternal);
    plan.Clear();
    EXPECT_TRUE(backend->RunTogether(plan, {}, {}, none).ok()) << "a step in which nobody has a row";
    DecodeOptions alone = SharedOptions();
    alone.share_mlp = false;
    EmulatedDevice other;
    EXPECT_EQ(MakeBackend(*model, alone, other)->RunTogether(plan, {}, {}, none).code(),
              absl::StatusCode::kFailedPrecondition);
  });
  auto ops = std::make_unique<testing::EmulatedDeviceOps>(device);
  const Progress quiet = [](const std::string&) {};
  auto weights = UploadWeights(*model, {{0, 1}, true}, *ops, quiet);
  ASSERT_TRUE(weights.ok());
  const auto part =
      CudaBackend::Create(SharedOptions(), model->config(), std::move(ops), *std::move(weights), quiet);
  EXPECT_EQ(part.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(part.status().message()), HasSubstr("--mlp=tp"));
}

TEST(CudaTogetherLossTest, OnlyRanksWithTheSameModelHaveTheSameSignature) {
  const auto signature = [](const std::string& name) {
    EmulatedDevice device;
    const auto engine = MakeSharedEngine(*LoadGolden(name), SharedOptions(), device);
    EXPECT_TRUE(engine->together());
    return engine->signature();
  };
  const uint64_t llama = signature("llama");
  EXPECT_NE(llama, 0u);
  EXPECT_EQ(llama, signature("llama"));
  for (const char* other : {"llama_tied", "mistral", "qwen2", "qwen3"}) EXPECT_NE(llama, signature(other));
  EmulatedDevice device;
  DecodeOptions alone = SharedOptions();
  alone.share_mlp = false;
  EXPECT_FALSE(MakeSharedEngine(*LoadGolden("llama"), alone, device)->together());
}

}  // namespace
}  // namespace bfio::worker::gpu
