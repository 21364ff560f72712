#include "common/telemetry/line_limiter.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace bfio {
namespace {

const absl::Time kStart = absl::UnixEpoch();

TEST(LineLimiter, PassesABurstOfEachKindAndCountsTheOthers) {
  LineLimiter limiter(3, absl::Seconds(10));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(limiter.Pass("abandoned", kStart), "") << i;
  for (int i = 0; i < 500; ++i) {
    EXPECT_FALSE(limiter.Pass("abandoned", kStart + i * absl::Milliseconds(1)).has_value());
  }
  EXPECT_EQ(limiter.Pass("refused", kStart + absl::Seconds(1)), "") << "another kind is not affected";
  const absl::Time later = kStart + absl::Seconds(10);
  EXPECT_EQ(limiter.Pass("abandoned", later), "; 500 more since the last such line");
  EXPECT_EQ(limiter.Pass("abandoned", later), "");
}

TEST(LineLimiter, KindsAreBounded) {
  LineLimiter limiter(1, absl::Seconds(10));
  size_t lines = 0;
  for (int i = 0; i < 1000; ++i) lines += limiter.Pass(absl::StrCat("kind ", i), kStart).has_value() ? 1 : 0;
  EXPECT_EQ(lines, LineLimiter::kMaxKinds + 1) << "the rest share one";
}

}  // namespace
}  // namespace bfio
