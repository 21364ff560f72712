// Tests of engines on a GPU, over the families of tests/golden. Without a GPU they are skipped;
// deploy/gpu_check runs them.
#pragma once

#include <cstdlib>
#include <vector>

#include "gtest/gtest.h"
#include "tests/testing/decode_schedule.h"
#include "worker/engine/cuda/device/cuda_engine.h"

namespace bfio::testing {

class OnAGpu : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const absl::Status status = worker::CheckCudaDevice(0);
    if (status.ok()) return;
    // deploy/gpu_check sets this where a GPU must be present.
    if (std::getenv("BFIO_REQUIRE_GPU") != nullptr) FAIL() << status.message();
    GTEST_SKIP() << status.message();
  }
};

// Products of different buckets differ by rounding, so a close draw may differ in a batch: most requests must
// be equal in every token, and all must be complete.
inline void ExpectTokensOfAloneInBatches(worker::Engine& together, worker::Engine& alone, int64_t vocab) {
  Rng rng(1);
  int equal = 0, all = 0;
  for (int round = 0; round < 20; ++round) {
    std::vector<worker::SequenceRequest> requests;
    for (worker::Handle handle = 1; handle <= 5; ++handle) {
      requests.push_back(RandomRequest(rng, handle, vocab, 60, 20));
      ASSERT_TRUE(together.Admit(requests.back()).ok());
    }
    auto streams = RunSteps(together);
    for (const worker::SequenceRequest& request : requests) {
      EXPECT_TRUE(streams[request.handle].finished);
      equal += streams[request.handle].tokens == RunAlone(alone, request).tokens;
      ++all;
    }
  }
  EXPECT_GE(equal, all * 8 / 10);
}

}  // namespace bfio::testing
