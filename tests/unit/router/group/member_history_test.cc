#include "router/group/member_history.h"

#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"

namespace bfio::router {
namespace {

TEST(MemberHistory, TheNewestDrainingWorkersAreRemembered) {
  constexpr auto kMost = static_cast<int>(MemberHistory::kMaxWorkers);
  MemberHistory history;
  const auto pod = [](int i) { return absl::StrCat("pod-", i); };
  for (int i = 0; i < kMost; ++i) history.RememberDraining(pod(i), 7);
  // Remembered again, it is no longer the oldest, and takes no other's entry.
  history.RememberDraining(pod(0), 7);
  EXPECT_TRUE(history.WasDraining(pod(1)));
  history.RememberDraining("drained", 7);
  EXPECT_FALSE(history.WasDraining(pod(1)));
  EXPECT_TRUE(history.WasDraining(pod(0)));
  for (int i = 2; i < kMost; ++i) EXPECT_TRUE(history.WasDraining(pod(i))) << i;
  EXPECT_TRUE(history.TakeDraining("drained", 7, 8));
  EXPECT_FALSE(history.WasDraining("drained"));
}

}  // namespace
}  // namespace bfio::router
