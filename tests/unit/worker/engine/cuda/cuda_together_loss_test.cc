// Groups that shard their MLP over GPUs: lost ranks, changing groups and failing devices. On the emulator
// (tests/testing/emulated_ranks.h).
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/cuda_together.h"
#include "tests/testing/decode_schedule.h"

namespace bfio::worker::gpu {
namespace {

using testing::EmulatedDevice;
using testing::EmulatedGroup;
using testing::Feed;
using testing::Golden;
using testing::GroupMember;
using ::testing::HasSubstr;
using testing::LoadGolden;
using testing::MakeBackend;
using testing::MakeSharedEngine;
using testing::RunEmulatedRanks;
using testing::SharedOptions;
using testing::Stream;

// A rank's device, engine and received tokens over several epochs.
struct EmulatedLife {
  std::unique_ptr<EmulatedDevice> device = std::make_unique<EmulatedDevice>();
  std::unique_ptr<DecodeEngine> engine;
  std::map<Handle, Stream> got;
};

// Runs one epoch of `lives`, until no request is active or `steps` steps are done.
void RunLives(EmulatedGroup group, std::vector<EmulatedLife>& lives, int steps) {
  group.ranks = static_cast<int>(lives.size());
  RunEmulatedRanks(group, [&](int rank, Barrier& barrier) {
    GroupMember member(group.Spec(rank), barrier);
    EmulatedLife& life = lives[rank];
    StepOutput out;
    for (int step = 0; step < steps; ++step) {
      const auto busy = member.Step(*life.engine, life.engine->active() > 0, out);
      if (!busy.ok()) {
        EXPECT_GT(group.dies, 0) << busy.status();
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

// Runs three ranks, of which the last leaves: after some steps, or in a call of the next step (`dies`,
// counted from that step's first call; 0: none). Two ranks continue, then two new ones join.
std::map<Handle, Stream> LivesWithALoss(const Model& model, bool on_device, int calls, int dies) {
  constexpr int kStepsBefore = 3;
  Rng rng(7);
  std::vector<EmulatedLife> lives(3);
  Handle handle = 0;
  for (EmulatedLife& life : lives) {
    life.engine = MakeSharedEngine(model, SharedOptions(), *life.device);
    for (int i = 0; i < 3; ++i) {
      const auto request = testing::RandomRequest(rng, ++handle, model.config().vocab, 90, 9);
      EXPECT_TRUE(life.engine->Admit(request).ok());
    }
  }
  EmulatedGroup group;
  group.on_device = on_device;
  if (dies > 0) group.dies = kStepsBefore * calls + dies;
  RunLives(group, lives, kStepsBefore + (dies > 0 ? 1 : 0));
  // The last rank's requests are lost; a router would place them again.
  lives.pop_back();
  group.dies = 0;
  group.epoch = 2;
  RunLives(group, lives, 2);
  for (int i = 0; i < 2; ++i) {
    EmulatedLife& life = lives.emplace_back();
    life.engine = MakeSharedEngine(model, SharedOptions(), *life.device);
  }
  group.epoch = 3;
  RunLives(group, lives, 1 << 20);
  std::map<Handle, Stream> got;
  for (const EmulatedLife& life : lives) {
    got.insert(life.got.begin(), life.got.end());
    EXPECT_EQ(life.engine->active(), 0);
  }
  return got;
}

// Expects equal results to the last bit: the same steps in groups of the same sizes, with or without a step
// that is aborted and repeated.
void ExpectALossChangesNothing(const std::string& name, bool on_device) {
  const auto model = LoadGolden(name);
  const int calls = 1 + 2 * static_cast<int>(model->config().layers);
  const auto wanted = LivesWithALoss(*model, on_device, calls, 0);
  ASSERT_EQ(wanted.size(), 6u);
  // The collectives of the first and of the last layer.
  for (const int dies : {2, 3, calls - 1, calls}) {
    SCOPED_TRACE(absl::StrCat("call ", dies));
    auto got = LivesWithALoss(*model, on_device, calls, dies);
    ASSERT_EQ(got.size(), wanted.size());
    for (const auto& [handle, stream] : wanted) {
      EXPECT_EQ(got[handle].tokens, stream.tokens);
      EXPECT_EQ(got[handle].log_probabilities, stream.log_probabilities);
    }
  }
}

TEST(CudaTogetherLossTest, AnAbortedStepIsRepeatedWithTheSameResult) {
  ExpectALossChangesNothing("llama_tied", false);
}

TEST(CudaTogetherLossTest, ALossSeenAfterQueueingOnTheDeviceChangesNothing) {
  ExpectALossChangesNothing("qwen3", true);
}

// A request may be cancelled after the loss: its tokens are not computed again, and another request gets its
// pages, which may contain NaN.
TEST(CudaTogetherLossTest, PagesOfALostStepAreSafeToReuse) {
  const auto model = LoadGolden("llama");
  const Feed lost = {{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, {10}}, next = {{8, 5, 3}, {2, 1}};
  const auto wanted = testing::FeedGroup(*model, {next}, 2, true)[0];
  for (const bool fails_at_once : {false, true}) {
    for (const int dies : {2, 3, 4, 5}) {
      SCOPED_TRACE(absl::StrCat("call ", dies));
      std::vector<EmulatedDevice> devices(2);
      std::vector<std::unique_ptr<CudaBackend>> backends;
      for (EmulatedDevice& device : devices) backends.push_back(MakeBackend(*model, SharedOptions(), device));
      EmulatedGroup group = {2, 1, dies, true, fails_at_once};
      RunEmulatedRanks(group, [&](int rank, Barrier& barrier) {
        const auto got = FeedTogether(*backends[rank], lost, 1, group.Spec(rank), barrier);
        EXPECT_EQ(got.status().code(), absl::StatusCode::kUnavailable) << got.status();
      });
      group = {1, 2, 0, true};
      RunEmulatedRanks(group, [&](int rank, Barrier& barrier) {
        const auto got = FeedTogether(*backends[rank], next, 2, group.Spec(rank), barrier);
        ASSERT_TRUE(got.ok()) << got.status();
        EXPECT_EQ(*got, wanted);
      });
    }
  }
}

TEST(CudaTogetherLossTest, AStepOnTheDeviceEndsAtItsDeadlineAndCanBeRepeated) {
  const auto model = LoadGolden("llama");
  EmulatedDevice device;
  const auto backend = MakeBackend(*model, SharedOptions(), device);
  StepPlan plan;
  plan.Clear();
  plan.AddRun(0, 0, std::vector<uint32_t>{1, 2}, std::vector<PageId>{0}, true);
  const std::vector<worker::Draw> draws(1);
  std::vector<Drawn> drawn(1);
  for (const uint64_t epoch : {1, 2}) {
    const EmulatedGroup group = {1, epoch, 0, true};
    RunEmulatedRanks(group, [&](int rank, Barrier& barrier) {
      const StepPeers all(group.Spec(rank), barrier, 0, 48, testing::kLongEnough);
      ASSERT_TRUE(backend->EnterGroup(all).ok());
      ASSERT_TRUE(barrier.AllReduce(1, {.rows = 2}, testing::kLongEnough).ok());
      StepPeers peers(group.Spec(rank), barrier, 1, 2, epoch == 1 ? -absl::Seconds(1) : testing::kLongEnough);
      const absl::Status status = backend->RunTogether(plan, draws, absl::MakeSpan(drawn), peers);
      EXPECT_EQ(status, peers.status());
      EXPECT_EQ(status.code(), epoch == 1 ? absl::StatusCode::kDeadlineExceeded : absl::StatusCode::kOk);
      EXPECT_EQ(barrier.AllReduce(1, {}, testing::kLongEnough).status(), status);
    });
  }
}

// The device fails before the rank's collectives are queued, so the peers' collectives would wait for them.
TEST(CudaTogetherLossTest, AFailingDeviceEndsItsPeersStep) {
  const auto model = LoadGolden("llama");
  const Feed feed = {{1, 2, 3}, {3}};
  std::vector<EmulatedDevice> devices(2);
  std::vector<std::unique_ptr<CudaBackend>> backends;
  for (EmulatedDevice& device : devices) backends.push_back(MakeBackend(*model, SharedOptions(), device));
  devices[1].failing_wait = devices[1].waits;
  // In the second round the device has been broken since the first.
  for (const bool on_device : {true, true, false}) {
    const EmulatedGroup group = {2, 1, 0, on_device};
    std::vector<absl::Status> ended(2);
    RunEmulatedRanks(group, [&](int rank, Barrier& barrier) {
      ended[rank] = FeedTogether(*backends[rank], feed, 1, group.Spec(rank), barrier).status();
      if (rank == 0 || !on_device) return;
      EXPECT_EQ(barrier.AllReduce(1, {}, testing::kLongEnough).status(), ended[1]) << "it is finished";
    });
    EXPECT_THAT(std::string(ended[1].message()), HasSubstr("cudaEventQuery"));
    EXPECT_EQ(ended[0].code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(std::string(ended[0].message()), HasSubstr("rank 1 left"));
  }
  RunEmulatedRanks({1, 2, 0, true}, [&](int rank, Barrier& barrier) {
    EXPECT_TRUE(FeedTogether(*backends[0], feed, 1, {2, rank, 1, ""}, barrier).ok());
  });
}

TEST(CudaTogetherLossTest, ADeviceThatFailsAfterALostPeerIsNotUsedAgain) {
  const auto model = LoadGolden("llama");
  const Feed feed = {{1, 2, 3}, {3}};
  std::vector<EmulatedDevice> devices(2);
  std::vector<std::unique_ptr<CudaBackend>> backends;
  for (EmulatedDevice& device : devices) backends.push_back(MakeBackend(*model, SharedOptions(), device));
  int waits = 0;
  for (const int dies : {0, 0, 3}) {
    // As many waits as a whole step has succeed; the next one, for the work that the aborted step left in the
    // stream, fails.
    if (dies > 0) devices[0].failing_wait = devices[0].waits + waits;
    const int before = devices[0].waits;
    std::vector<absl::Status> ended(2);
    RunEmulatedRanks({2, 1, dies, true}, [&](int rank, Barrier& barrier) {
      ended[rank] = FeedTogether(*backends[rank], feed, 1, {1, rank, 2, ""}, barrier).status();
    });
    waits = devices[0].waits - before;
    EXPECT_EQ(ended[0].ok(), dies == 0) << ended[0];
    EXPECT_THAT(std::string(ended[0].message()), dies > 0 ? HasSubstr("cudaEventQuery") : HasSubstr(""));
  }
  RunEmulatedRanks({1, 2, 0, true}, [&](int rank, Barrier& barrier) {
    EXPECT_FALSE(FeedTogether(*backends[0], feed, 1, {2, rank, 1, ""}, barrier).ok());
  });
}

// Memory and products are set up when a group forms, also as groups and barriers change.
TEST(CudaTogetherLossTest, AStepAllocatesNothingAndPreparesNoProducts) {
  const auto model = LoadGolden("llama");
  const Golden golden("llama");
  const Feed feed = {{golden.tokens.begin(), golden.tokens.begin() + 30}, {9, 20, 1}};
  const DecodeOptions options = SharedOptions();
  const int64_t most = MaxRows(options.limits.slots, options.step_tokens);
  std::vector<EmulatedDevice> devices(2);
  std::vector<std::unique_ptr<CudaBackend>> backends;
  for (EmulatedDevice& device : devices) backends.push_back(MakeBackend(*model, options, device));
  const int64_t made = devices[0].used_bytes;
  std::vector<std::pair<size_t, int64_t>> taken;
  for (uint64_t epoch = 1; epoch <= 8; ++epoch) {
    const EmulatedGroup group = {epoch % 2 == 1 ? 2 : 1, epoch, 0, epoch % 4 >= 2};
    RunEmulatedRanks(group, [&](int rank, Barrier& barrier) {
      const StepPeers all(group.Spec(rank), barrier, 0, most, testing::kLongEnough);
      ASSERT_TRUE(backends[rank]->EnterGroup(all).ok());
      EmulatedDevice& device = devices[rank];
      const size_t prepared = device.prepared.size();
      const int allocations = device.allocations;
      const auto got = FeedTogether(*backends[rank], feed, 3, group.Spec(rank), barrier);
      EXPECT_TRUE(got.ok()) << got.status();
      EXPECT_EQ(device.prepared.size(), prepared);
      // FeedTogether reads each step's logits through memory of its own.
      EXPECT_EQ(device.allocations - allocations, 3);
    });
    taken.emplace_back(devices[0].prepared.size(), devices[0].used_bytes);
  }
  EXPECT_EQ(taken[7], taken[3]) << "what all groups need is there";
  EXPECT_LE(taken[7].second - made, SharedMlp::MostBytes(model->config(), static_cast<int32_t>(most)) + 256)
      << "what is kept for it when KV tokens are fitted";
}

TEST(CudaTogetherLossTest, AStepOfAGroupNotEnteredIsRefused) {
  const auto model = LoadGolden("llama");
  EmulatedDevice device;
  const auto backend = MakeBackend(*model, SharedOptions(), device);
  StepPlan plan;
  plan.Clear();
  plan.AddRun(0, 0, std::vector<uint32_t>{1, 2}, std::vector<PageId>{0}, true);
  const std::vector<worker::Draw> draws(1);
  std::vector<Drawn> drawn(1);
  RunEmulatedRanks({}, [&](int rank, Barrier& barrier) {
    StepPeers peers({1, rank, 1, ""}, barrier, 1, 2, testing::kLongEnough);
    EXPECT_TRUE(absl::IsInternal(backend->RunTogether(plan, draws, absl::MakeSpan(drawn), peers)));
  });
}

TEST(CudaTogetherLossTest, AGroupBeyondTheDevicesMemoryIsRefusedAndASmallerOneIsEntered) {
  const auto model = LoadGolden("llama");
  EmulatedDevice device;
  const auto backend = MakeBackend(*model, SharedOptions(), device);
  const int64_t before = device.used_bytes;
  // What groups of up to 16 rows need; and what is lost to alignment.
  device.memory_bytes = before + SharedMlp::MostBytes(model->config(), 16) + 4096;
  RunEmulatedRanks({}, [&](int rank, Barrier& barrier) {
    const StepPeers peers({1, rank, 1, ""}, barrier, 0, 480, testing::kLongEnough);
    const absl::Status status = backend->EnterGroup(peers);
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("no memory for"));
    EXPECT_EQ(device.used_bytes, before) << "part of it was allocated";
    const StepPeers fewer({1, rank, 1, ""}, barrier, 0, 16, testing::kLongEnough);
    const absl::Status smaller = backend->EnterGroup(fewer);
    EXPECT_TRUE(smaller.ok()) << smaller;
  });
}

TEST(CudaTogetherLossTest, ADeviceErrorEndsTheEngine) {
  const auto model = LoadGolden("llama");
  EmulatedDevice device;
  const auto backend = MakeBackend(*model, SharedOptions(), device);
  const Feed feed = {{1, 2, 3}, {1}};
  RunEmulatedRanks({}, [&](int rank, Barrier& barrier) {
    device.failing_wait = device.waits + 3;
    const auto first = FeedTogether(*backend, feed, 3, {1, rank, 1, ""}, barrier);
    EXPECT_EQ(first.status().code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(std::string(first.status().message()), HasSubstr("cudaEventQuery"));
    device.failing_wait = -1;
    EXPECT_EQ(FeedTogether(*backend, feed, 3, {1, rank, 1, ""}, barrier).status(), first.status());
  });
}

TEST(CudaTogetherLossTest, UnsupportedShardingIsRefused) {
  const auto model = LoadGolden("llama_tied");
  EmulatedDevice device;
  const auto backend = MakeBackend(*model, SharedOptions(), device);
  EXPECT_EQ(backend->Run({}, {}, {}).code(), absl::StatusCode::kFailedPrecondition);
  RunEmulatedRanks({}, [&](int rank, Barrier& barrier) {
    StepPlan plan;
    plan.Clear();
    plan.AddRun(0, 0, std::vector<uint32_t>{1}, std::vector<PageId>{0}, false);
    StepPeers none({1, rank, 1, ""}, barrier, 1, 0, testing::kLongEnough);
    EXPECT_EQ(backend->RunTogether(plan, {}, {}, none).code(), absl::StatusCode::kInternal);
    plan.Clear();
    EXPECT_TRUE(backend->RunTogether(plan, {}, {}, none).ok()) << "a step in which no rank has a row";
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
