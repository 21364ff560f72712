// Prompts that take several steps. As worker/engine/engine.h defines, such a prompt counts whole in each of
// its steps and generates no token in them. Reports name these requests, so that accounts, tenants' charges
// and reserved memory are in tokens, not in steps.
#include <gtest/gtest.h>

#include <memory>

#include "tests/unit/router/core/scheduler/chunk_group.h"

namespace bfio::core::chunked_prefill_test {

using bfio::testing::ChunkGroup;
using bfio::testing::FirstFit;
using bfio::testing::Request;

// One worker that computes 512 prompt tokens in a step.
class ChunkedPrefill : public ChunkGroup {
 public:
  explicit ChunkedPrefill(const SchedulerOptions& options = {},
                          std::unique_ptr<Lookahead> lookahead = nullptr, int64_t kv_tokens = 100'000)
      : ChunkGroup({{.slots = 8, .kv_tokens = kv_tokens}}, std::make_unique<FirstFit>(), BatchCost(), options,
                   std::move(lookahead)) {}
  int64_t load = 0;

 protected:
  void OnReported(size_t, const Done& done) override { load = done.report.load_tokens; }
};

TEST(ChunkedPrefillTest, AnEndedRequestLeavesNothingBehindAndItsTenantPaysForTokensNotForSteps) {
  ChunkedPrefill group;
  group.Enqueue(Request(1, 1900, 5));  // ends in step 8
  group.Step(8);
  EXPECT_EQ(group.group.placed(), 0);
  EXPECT_EQ(group.group.cluster().pool().service().Served(0),
            1900 * TenantService::kPromptWeight + 5 * TenantService::kOutputWeight);
  group.Enqueue(Request(2, 1900, 5));
  group.Enqueue(Request(3, 100));
  group.Step(8);
  EXPECT_EQ(group.group.placed(), 1);
  EXPECT_EQ(group.Account().load_tokens, 100 + 5);
  EXPECT_EQ(group.totals().drift_tokens, 0);
}

// Memory for 150 tokens. One running request holds 100 + 10, and another needs 30 + 40 at its end. Both fit
// only if the first one ends before that.
TEST(ChunkedPrefillTest, MemoryIsHeldForAsLongAsPromptsTakeOfLate) {
  for (const auto kind : {KvAdmissionOptions::Kind::kFeasible, KvAdmissionOptions::Kind::kMcSf}) {
    for (const int64_t budget : {512, 16}) {
      ChunkedPrefill group({.admission = {.kind = kind}}, *MakeLookahead("max_tokens"), /*kv_tokens=*/150);
      group.budget = budget;
      // A first request, so that reports have shown how long prompts take.
      group.Enqueue(Request(1, 100, 2));
      while (group.group.Knows(1)) group.Step();
      group.Enqueue(Request(2, 100, 10));
      group.Step();
      ASSERT_EQ(group.group.WorkerOf(2), 0);
      group.Enqueue(Request(3, 30, 40));
      EXPECT_EQ(group.Plan(), budget == 512 ? "3@0" : "");
    }
  }
}

}  // namespace bfio::core::chunked_prefill_test
