// CUDA engines that share the computation of their MLP layers (--mlp=tp), on the emulator.
//
// Purpose: creates backends of golden checkpoints and feeds them sequences, all ranks of a group in the same
// steps. Threads: each rank's thread, while it holds the emulator (emulated_ranks.h).
#ifndef BFIO_TESTS_TESTING_CUDA_TOGETHER_H_
#define BFIO_TESTS_TESTING_CUDA_TOGETHER_H_

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status_macros.h"
#include "gtest/gtest.h"
#include "tests/testing/emulated_device_ops.h"
#include "tests/testing/emulated_ranks.h"
#include "tests/testing/golden.h"
#include "tests/testing/group_member.h"
#include "worker/barrier/step_peers.h"
#include "worker/engine/cuda/cuda_backend.h"
#include "worker/engine/model/model.h"

namespace bfio::testing {

inline constexpr absl::Duration kLongEnough = BarrierRanks::kForever;

inline worker::DecodeOptions SharedOptions() {
  worker::DecodeOptions options;
  options.limits = {6, 600, 1000};
  options.page_tokens = 16;
  options.step_tokens = 48;
  options.share_mlp = true;
  return options;
}

inline std::shared_ptr<const worker::Model> LoadGolden(const std::string& name) {
  auto model = worker::LoadModel(GoldenFolder(name));
  EXPECT_TRUE(model.ok()) << model.status();
  return *std::move(model);
}

inline std::unique_ptr<worker::gpu::CudaBackend> MakeBackend(const worker::Model& model,
                                                             const worker::DecodeOptions& options,
                                                             EmulatedDevice& device) {
  auto ops = std::make_unique<EmulatedDeviceOps>(device);
  const worker::gpu::Progress quiet = [](const std::string&) {};
  auto weights = worker::gpu::UploadWeights(model, *ops, quiet);
  EXPECT_TRUE(weights.ok()) << weights.status();
  auto backend =
      worker::gpu::CudaBackend::Create(options, model.config(), std::move(ops), *std::move(weights), quiet);
  EXPECT_TRUE(backend.ok()) << backend.status();
  return *std::move(backend);
}

inline std::unique_ptr<worker::DecodeEngine> MakeSharedEngine(const worker::Model& model,
                                                              const worker::DecodeOptions& options,
                                                              EmulatedDevice& device) {
  auto engine = worker::DecodeEngine::Create(options, MakeBackend(model, options, device));
  EXPECT_TRUE(engine.ok()) << engine.status();
  return *std::move(engine);
}

inline std::vector<float> LogitsOf(worker::gpu::CudaBackend& backend, int32_t draws) {
  const int64_t count = draws * backend.facts().vocab;
  const auto bytes = static_cast<int64_t>(count * sizeof(float));
  const auto pinned = backend.ops().AllocatePinned(bytes, "logits");
  EXPECT_TRUE(pinned.ok()) << pinned.status();
  EXPECT_TRUE(backend.ops().CopyOut(*pinned, backend.forward().logits(), bytes).ok());
  // Finish is not counted as a wait, because tests count the waits of the backend.
  EXPECT_TRUE(static_cast<EmulatedDeviceOps&>(backend.ops()).Finish().ok());
  const auto* const from = static_cast<const float*>(*pinned);
  std::vector<float> logits(from, from + count);
  EXPECT_TRUE(backend.ops().Release(*pinned).ok());
  return logits;
}

// A sequence that a rank is fed in chunks of these sizes; 0: the rank has no rows in that step. The last size
// repeats.
struct Feed {
  std::vector<uint32_t> tokens;
  std::vector<int32_t> pieces;
};

// The logits of every chunk's last token, or an error.
inline absl::StatusOr<std::vector<float>> FeedTogether(worker::gpu::CudaBackend& backend, const Feed& feed,
                                                       int steps, const worker::GroupSpec& group,
                                                       worker::Barrier& barrier) {
  std::vector<worker::PageId> pages;
  for (worker::PageId page = 0; page < 8; ++page) pages.push_back(17 - 2 * page);
  std::vector<float> logits;
  // The error is ignored here: a backend that cannot enter is broken, and its step reports it.
  const worker::DecodeOptions options = SharedOptions();
  const worker::StepPeers all(group, barrier, 0, worker::MaxRows(options.limits.slots, options.step_tokens),
                              kLongEnough);
  backend.EnterGroup(all).IgnoreError();
  size_t at = 0;
  for (int step = 1; step <= steps; ++step) {
    const auto which = std::min<size_t>(static_cast<size_t>(step), feed.pieces.size()) - 1;
    const auto size = std::min<size_t>(feed.pieces[which], feed.tokens.size() - at);
    worker::StepPlan plan;
    plan.Clear();
    if (size > 0) {
      plan.AddRun(0, static_cast<int64_t>(at), absl::MakeConstSpan(feed.tokens).subspan(at, size), pages,
                  true);
    }
    BFIO_ASSIGN_OR_RETURN(const auto agreed,
                          barrier.AllReduce(step, {.rows = static_cast<int64_t>(size)}, kLongEnough));
    worker::StepPeers peers(group, barrier, step, agreed.max_rows, kLongEnough);
    const std::vector<worker::Draw> draws(size > 0 ? 1 : 0);
    std::vector<worker::Drawn> drawn(draws.size());
    BFIO_RETURN_IF_ERROR(backend.RunTogether(plan, draws, absl::MakeSpan(drawn), peers));
    at += size;
    if (size == 0) continue;
    const std::vector<float> row = LogitsOf(backend, 1);
    EXPECT_EQ(drawn[0].id, static_cast<uint32_t>(std::max_element(row.begin(), row.end()) - row.begin()));
    logits.insert(logits.end(), row.begin(), row.end());
  }
  EXPECT_TRUE(feed.pieces == std::vector<int32_t>{0} || at == feed.tokens.size());
  return logits;
}

// Logits by rank, of a new group.
inline std::vector<std::vector<float>> FeedGroup(const worker::Model& model, const std::vector<Feed>& feeds,
                                                 int steps, bool on_device) {
  EmulatedGroup group;
  group.ranks = static_cast<int>(feeds.size());
  group.on_device = on_device;
  std::vector<std::vector<float>> logits(feeds.size());
  RunEmulatedRanks(group, [&](int rank, worker::Barrier& barrier) {
    EmulatedDevice device;
    const auto backend = MakeBackend(model, SharedOptions(), device);
    auto got = FeedTogether(*backend, feeds[rank], steps, group.Spec(rank), barrier);
    ASSERT_TRUE(got.ok()) << got.status();
    logits[rank] = *std::move(got);
    EXPECT_EQ(device.replays, 0);
  });
  return logits;
}

}  // namespace bfio::testing

#endif  // BFIO_TESTS_TESTING_CUDA_TOGETHER_H_
