// Invariants of several groups that share a pool, over random sessions; tests/testing/cluster_session.h lists
// them.
#include "router/core/scheduler/cluster.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "router/core/model/free_capacity.h"
#include "tests/testing/cluster_session.h"

namespace bfio::core {
namespace {

using bfio::testing::ClusterSession;

// Leaves some requests waiting although they fit.
class RandomFit : public Policy {
 public:
  absl::string_view name() const override { return "random_fit"; }
  void Decide(const Snapshot& snapshot, Decision& decision) override {
    FreeCapacity free;
    free.Reset(snapshot);
    for (int32_t i = 0; i < static_cast<int32_t>(snapshot.waiting.size()); ++i) {
      const auto g = static_cast<WorkerIndex>(rng_.Below(snapshot.workers.size()));
      if (!free.Fits(snapshot.waiting[i], g)) continue;
      free.Take(snapshot.waiting[i], g);
      decision.assignments.push_back({i, g});
    }
  }

 private:
  Rng rng_{7};
};

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

// Constant loads, speculative decoding, shrinking prompts.
TEST(ClusterProperty, AccountsAreTheWorkersHoweverLoadsGrow) {
  for (const PlanMode mode : {PlanMode::kLockstep, PlanMode::kPipelined}) {
    for (const std::optional<int64_t> growth : std::vector<std::optional<int64_t>>{0, 1, 3, 7, -2, {}}) {
      for (uint64_t seed = 1; seed <= 20 && !::testing::Test::HasFailure(); ++seed) {
        SCOPED_TRACE(absl::StrCat("growth ", growth.value_or(99), ", seed ", seed));
        Cluster cluster({.plan_mode = mode}, {}, [](const auto&) { return std::make_unique<RandomFit>(); });
        ClusterSession session(&cluster, {.seed = seed,
                                          .most_groups = 1,
                                          .kinds = {GroupKind::kBarrier},
                                          .ample_kv = false,
                                          .growth = growth});
        session.Run(400);
      }
    }
  }
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
