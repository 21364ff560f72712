// Logits of the CUDA engine for golden cases, under the emulator or on a GPU.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/testing/golden.h"
#include "worker/engine/cuda/cuda_backend.h"

namespace bfio::testing {

// Feeds `tokens` in chunks of the given sizes (the last one repeats), together with a second sequence whose
// row comes first. Returns the logits of the last row of each chunk that ends beyond `first`. Uses pages 0 to
// 17.
inline std::vector<float> RunInChunks(worker::gpu::CudaBackend& backend, const std::vector<uint32_t>& tokens,
                                      int32_t first, const std::vector<int32_t>& chunks) {
  const auto vocab = static_cast<size_t>(backend.facts().vocab);
  std::vector<worker::PageId> pages, other_pages;
  for (worker::PageId page = 0; page < 8; ++page) {
    pages.push_back(17 - 2 * page);
    other_pages.push_back(2 * page);
  }
  const auto row_bytes = static_cast<int64_t>(vocab * sizeof(float));
  const auto pinned = backend.ops().AllocatePinned(row_bytes, "a row of logits");
  EXPECT_TRUE(pinned.ok()) << pinned.status();
  const auto* const row = static_cast<const float*>(*pinned);
  std::vector<float> logits;
  size_t chunk = 0;
  int64_t other_at = 0;
  for (size_t at = 0; at < tokens.size(); ++chunk) {
    const auto size = std::min<size_t>(chunks[std::min(chunk, chunks.size() - 1)], tokens.size() - at);
    worker::StepPlan plan;
    plan.Clear();
    const uint32_t other = static_cast<uint32_t>(chunk * 7 % vocab);
    plan.AddRun(1, other_at++, {&other, 1}, other_pages, true);
    plan.AddRun(0, static_cast<int64_t>(at), absl::MakeConstSpan(tokens).subspan(at, size), pages, true);
    const std::vector<worker::Draw> draws(2);
    std::vector<worker::Drawn> drawn(2);
    const absl::Status status = backend.Run(plan, draws, absl::MakeSpan(drawn));
    EXPECT_TRUE(status.ok()) << status;
    if (!status.ok()) return logits;
    at += size;
    if (static_cast<int32_t>(at) <= first) continue;
    EXPECT_TRUE(backend.ops().CopyOut(*pinned, backend.forward().logits() + vocab, row_bytes).ok());
    EXPECT_TRUE(backend.ops().Wait(absl::Seconds(10)).ok());
    logits.insert(logits.end(), row, row + vocab);
    EXPECT_EQ(drawn[1].id, static_cast<uint32_t>(std::max_element(row, row + vocab) - row));
  }
  return logits;
}

// Expects the logits of every row within `factor` times the error of transformers in bf16, and the token of
// transformers in fp32 wherever that error cannot change it.
inline void ExpectWithinBf16(const Golden& golden, const std::vector<float>& logits, double factor) {
  ASSERT_EQ(logits.size(), golden.top1.size() * golden.vocab());
  const GoldenDistance distance = DistanceTo(golden, logits);
  ::testing::Test::RecordProperty("relative_l2", std::to_string(distance.relative_l2));
  ::testing::Test::RecordProperty("transformers_relative_l2", std::to_string(golden.transformers_bf16));
  EXPECT_LT(distance.relative_l2, factor * golden.transformers_bf16);
  EXPECT_GT(distance.relative_l2, 0) << "it was fp32";
  EXPECT_LT(distance.largest, 2 * golden.transformers_bf16_max);
  int compared = 0;
  for (size_t row = 0; row < golden.top1.size(); ++row) {
    if (golden.margin[row] <= 2 * distance.largest) continue;
    const float* const begin = logits.data() + row * golden.vocab();
    EXPECT_EQ(std::max_element(begin, begin + golden.vocab()) - begin, golden.top1[row]) << "row " << row;
    ++compared;
  }
  EXPECT_GE(compared, 10);
}

}  // namespace bfio::testing
