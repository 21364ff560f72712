// Retry delays attached to a status.
#include "common/base/retry_delay.h"

#include <gtest/gtest.h>

namespace bfio {
namespace {

TEST(RetryDelay, SurvivesTheRoundTripToTheNanosecond) {
  absl::Status status = absl::ResourceExhaustedError("full");
  EXPECT_EQ(GetRetryDelay(status), std::nullopt);
  const absl::Duration delay = absl::Seconds(3) + absl::Nanoseconds(1);
  SetRetryDelay(status, delay);
  EXPECT_EQ(GetRetryDelay(status), delay);
  EXPECT_EQ(status.message(), "full");
  SetRetryDelay(status, absl::ZeroDuration());
  EXPECT_EQ(GetRetryDelay(status), absl::ZeroDuration()) << "now is another thing than nothing said";
}

TEST(RetryDelay, ASuccessHasNone) {
  EXPECT_EQ(GetRetryDelay(absl::OkStatus()), std::nullopt);
}

}  // namespace
}  // namespace bfio
