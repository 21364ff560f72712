// Logits of the CUDA engine, under the emulator or on a GPU.
//
// Purpose: feeds a golden case to a backend. Threads: none.
#ifndef BFIO_TESTS_TESTING_CUDA_LOGITS_H_
#define BFIO_TESTS_TESTING_CUDA_LOGITS_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "gtest/gtest.h"
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

}  // namespace bfio::testing

#endif  // BFIO_TESTS_TESTING_CUDA_LOGITS_H_
