// Found by fuzz_activations: a neighbour's message without hidden rows was copied from and to null pointers,
// which memcpy forbids (the sanitizers see it).
#include <gtest/gtest.h>

#include "chains/worker/convert_batch.h"

namespace bfio::worker {
namespace {

TEST(EmptyActivations, AreABatchWithoutRows) {
  const auto batch = FromProto(v1::Activations());
  ASSERT_TRUE(batch.ok()) << batch.status();
  EXPECT_EQ(batch->plan.rows(), 0);
  EXPECT_TRUE(batch->hidden.empty());
  // One without rows is not run.
  EXPECT_FALSE(CheckMicroBatch(*batch, {2, 8, 6, 16, 16}).ok());
}

}  // namespace
}  // namespace bfio::worker
