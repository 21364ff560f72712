// The simulator's memory does not grow with the length of a run.
#include <malloc.h>

#include <cstdint>

#include "common/workload/trace.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tools/sim/run/simulation.h"

namespace bfio::sim {
namespace {

int64_t BytesInUse() {
  const struct mallinfo2 info = mallinfo2();
  return static_cast<int64_t>(info.uordblks + info.hblkhd);
}

TEST(MemoryTest, IsFlatOverTenMillionRequestSteps) {
  const Trace trace = *SampleProfile("conversation", 5000, 1);
  SimOptions options = {.policy = "least_tokens", .reveal = 512, .warmup = 0, .steps = 3600, .workers = 64};
  int64_t request_steps = 0, early = 0, late = 0;
  auto simulation = Simulation::Create(options, trace);
  ASSERT_TRUE(simulation.ok());
  ASSERT_TRUE((*simulation)
                  ->Run({},
                        [&](const StepView& view) {
                          request_steps += view.residents;
                          // By then the longest output has gone once around the ring buffer, which has its
                          // final size.
                          if (view.step == 1200) early = BytesInUse();
                          if (view.step == options.steps) late = BytesInUse();
                        })
                  .ok());
  if (early == 0) GTEST_SKIP() << "this allocator does not tell what it has given out";
  EXPECT_GT(request_steps, 10'000'000);
  // If every step were kept, 8 bytes each would be 19 kB, and 60 bytes per request 2 MB.
  EXPECT_LT(late - early, 500'000) << "of " << early;
}

}  // namespace
}  // namespace bfio::sim
