// Invariants of several groups that share a pool, over random sessions; tests/testing/cluster_session.h lists
// them.
#include "router/core/scheduler/cluster.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/testing/cluster_session.h"

namespace bfio::core {
namespace {

using bfio::testing::ClusterSession;

void RunSessions(const char* policy, PlanMode mode, bool ample_kv, uint32_t models = 0, bool ranks = false) {
  int64_t placements = 0, moved = 0, held = 0;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(absl::StrCat(policy, ", seed ", seed));
    SchedulerOptions options;
    options.plan_mode = mode;
    options.max_waiting = 30;
    options.window = seed % 3 == 0 ? 3 : 4096;
    Cluster cluster(options, {policy, {}});
    ClusterSession session(
        &cluster,
        {.seed = seed, .most_groups = 1 + seed % 4, .ample_kv = ample_kv, .models = models, .ranks = ranks});
    session.Run(300);
    placements += session.placements();
    moved += session.moved();
    held += session.held();
    if (::testing::Test::HasFailure()) return;
  }
  EXPECT_GT(placements, 5'000) << "there is something to place";
  EXPECT_GT(moved, 20) << "what a group loses goes elsewhere";
  EXPECT_GE(held, ranks ? 500 : 0) << "named ranks are served";
}

TEST(ClusterProperty, LockstepGroupsKeepTheirAccountsAndTheOrderOfPriorities) {
  for (const char* policy : {"fcfs", "lpt", "bf_io_auto"}) RunSessions(policy, PlanMode::kLockstep, true);
}

TEST(ClusterProperty, PipelinedGroupsKeepTheirAccountsAndTheOrderOfPriorities) {
  for (const char* policy : {"least_tokens", "bf_io", "bf_io_auto"})
    RunSessions(policy, PlanMode::kPipelined, true);
}

TEST(ClusterProperty, KvIsNeverExceededWhereItIsShort) {
  for (const char* policy : {"fcfs", "bf_io_auto", "jffc"}) RunSessions(policy, PlanMode::kPipelined, false);
}

TEST(ClusterProperty, StartedRequestsContinueOnlyWithTheirModel) {
  for (const char* policy : {"fcfs", "lpt", "bf_io_auto"}) RunSessions(policy, PlanMode::kPipelined, true, 3);
  RunSessions("bf_io_auto", PlanMode::kLockstep, false, 2);
}

TEST(ClusterProperty, HeldRequestsRunOnTheirRankOrNowhere) {
  for (const char* policy : {"fcfs", "bf_io_auto"}) {
    RunSessions(policy, PlanMode::kPipelined, true, 0, true);
    RunSessions(policy, PlanMode::kLockstep, false, 2, true);
  }
}

}  // namespace
}  // namespace bfio::core
