#include "worker/engine/decode/kv_fit.h"

#include <limits>

#include "gtest/gtest.h"

namespace bfio::worker {
namespace {

DecodeOptions Asking(int64_t tokens) {
  return {.limits = {4, tokens, 1000}, .page_tokens = 16};
}

int64_t TenEachAnd100(int64_t tokens) {
  return 10 * tokens + 100;
}

TEST(KvFitTest, TheLargestFittingNumberIsExact) {
  EXPECT_EQ(MostKvTokens(1000, 10'100, TenEachAnd100), 1000);
  EXPECT_EQ(MostKvTokens(1000, 10'099, TenEachAnd100), 999);
  EXPECT_EQ(MostKvTokens(int64_t{1} << 40, 10'099, TenEachAnd100), 999);
  EXPECT_EQ(MostKvTokens(1000, 110, TenEachAnd100), 1);
  EXPECT_EQ(MostKvTokens(1000, 109, TenEachAnd100), 0);
  EXPECT_EQ(MostKvTokens(1000, -1, TenEachAnd100), 0);
  const auto huge = [](int64_t) { return std::numeric_limits<int64_t>::max(); };
  EXPECT_EQ(MostKvTokens(int64_t{1} << 40, 1 << 20, huge), 0);
}

TEST(KvFitTest, GivesTheRequestedOrTheFittingNumberOrNothing) {
  for (const bool fewer : {false, true}) {
    EXPECT_EQ(FitKvTokens(Asking(1000), fewer, 10'100, TenEachAnd100), 1000);
    // Fewer than a page per slot, but all that was requested.
    EXPECT_EQ(FitKvTokens(Asking(10), fewer, 10'100, TenEachAnd100), 10);
  }
  EXPECT_EQ(FitKvTokens(Asking(1000), false, 10'099, TenEachAnd100), std::nullopt);
  EXPECT_EQ(FitKvTokens(Asking(1000), true, 10'099, TenEachAnd100), 999);
  // The minimum is a page of 16 tokens for each of 4 slots.
  EXPECT_EQ(FitKvTokens(Asking(1000), true, 740, TenEachAnd100), 64);
  EXPECT_EQ(FitKvTokens(Asking(1000), true, 739, TenEachAnd100), std::nullopt);
}

}  // namespace
}  // namespace bfio::worker
