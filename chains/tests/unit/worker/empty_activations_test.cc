// Found by fuzz_activations: a message without hidden rows was copied with memcpy from and to null pointers,
// which is undefined behaviour that the sanitizers report.
#include <gtest/gtest.h>

#include "chains/worker/convert_batch.h"

namespace bfio::worker {
namespace {

TEST(EmptyActivations, AreABatchWithoutRows) {
  const auto batch = FromProto(v1::Activations());
  ASSERT_TRUE(batch.ok()) << batch.status();
  EXPECT_EQ(batch->plan.rows(), 0);
  EXPECT_TRUE(batch->hidden.empty());
  // A batch without rows is not run.
  EXPECT_FALSE(CheckMicroBatch(*batch, {2, 8, 6, 16, 16}).ok());
}

}  // namespace
}  // namespace bfio::worker
