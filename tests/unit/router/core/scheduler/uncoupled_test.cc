// Workers that share no barrier: each counts its own steps, and the accounts are exact nevertheless.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "router/core/admission/admission_text.h"
#include "router/core/scheduler/group_accounts.h"
#include "tests/testing/cluster_session.h"
#include "tests/unit/router/core/scheduler/step_group.h"

namespace bfio::core::uncoupled_test {

using bfio::testing::StepGroup;

constexpr int64_t kAmple = 1 << 20;

class Ranks : public StepGroup {
 public:
  explicit Ranks(const std::vector<WorkerSpec>& specs)
      : StepGroup(specs, *MakePolicy("jffc", {}), {}, nullptr, GroupKind::kIndependent) {}

  // Enqueues a request; the parts of the plan that is then made.
  std::vector<int64_t> Place(RequestId id) {
    Wait(id, id);
    const auto plan = group.MakePlan();
    return plan ? plan->apply_steps : std::vector<int64_t>();
  }
  absl::Status Report(WorkerIndex worker, int64_t step, int64_t applied, int64_t load,
                      std::vector<RequestId> finished = {}, bool idle = false) {
    return group.OnReport(worker, {.step = step,
                                   .applied_plan = applied,
                                   .load_tokens = load,
                                   .finished = finished,
                                   .group_idle = idle});
  }
};
using Parts = std::vector<int64_t>;

TEST(Uncoupled, EachWorkerGetsPlansForItsOwnSteps) {
  Ranks ranks({{.slots = 1, .kv_tokens = 100}, {.slots = 3, .kv_tokens = 200, .service_time = 2}});
  EXPECT_TRUE(ranks.group.Parked());
  EXPECT_EQ(ranks.group.MakePlan(), std::nullopt);
  EXPECT_EQ(ranks.Place(1), (Parts{1, 0})) << "the fastest alone";
  // The fast worker is full, so a plan for the slow one is made at once, whatever the fast one has reported.
  EXPECT_EQ(ranks.Place(2), (Parts{0, 1}));
  for (int64_t step = 1; step <= 3; ++step)
    ASSERT_TRUE(ranks.Report(0, step, 1, 9 + step).ok()) << "no step waits for the other's";
  EXPECT_TRUE(absl::IsInvalidArgument(ranks.Report(1, 1, 2, 10))) << "there is no such plan";
  ASSERT_TRUE(ranks.Report(1, 1, 1, 10).ok());
  EXPECT_EQ(ranks.Place(3), (Parts{0, 3})) << "it is in step 2";
  EXPECT_EQ(ranks.Place(4), (Parts{0, 4})) << "their numbers grow";
  EXPECT_EQ(ranks.Place(5), Parts()) << "all slots are taken";
  ASSERT_TRUE(ranks.Report(0, 4, 1, 13, {1}, true).ok());
  EXPECT_EQ(ranks.group.MakePlan()->apply_steps, (Parts{5, 0})) << "the place that falls free";
  EXPECT_EQ(ranks.totals().drift_tokens, 0);
}

// Of some engines only counts are known, and their ends.
TEST(Uncoupled, AReportMayCoverSeveralStepsOrNone) {
  Ranks ranks({{.slots = 3, .kv_tokens = 200}});
  ASSERT_EQ(ranks.Place(1), Parts{1});
  ASSERT_TRUE(ranks.Report(0, 0, 1, 10).ok());
  ASSERT_TRUE(ranks.Report(0, 40, 1, 50).ok());
  ASSERT_EQ(ranks.Place(2), Parts{42});
  ASSERT_TRUE(ranks.Report(0, 40, 42, 50 + 10).ok());
  ASSERT_TRUE(ranks.Report(0, 41, 42, 51 + 11, {1}).ok());
  EXPECT_EQ(ranks.group.Account(0).load_tokens, 12);
  EXPECT_EQ(ranks.totals().drift_tokens, 0);
  for (const int64_t step : {int64_t{40}, int64_t{2} << 20, int64_t{1} << 62})
    EXPECT_TRUE(absl::IsInvalidArgument(ranks.Report(0, step, 42, 12))) << step;
}

// What a worker states about its steps costs a tenant no more than its requests may generate.
TEST(Uncoupled, StepsBeyondARequestsLastAreNotCharged) {
  const auto lookahead = *MakeLookahead("none");
  TenantService service;
  Residents residents(lookahead.get(), &service);
  residents.Reset(1);
  const RequestSpec spec = bfio::testing::Request(1, 10, 50);
  const int32_t index = residents.Add(0, spec, 1, /*inflight=*/false, 0);
  for (const int64_t step : {int64_t{60}, int64_t{1} << 20, int64_t{1} << 40}) {
    EXPECT_EQ(residents.Age(0, index, step), 50);
    residents.Settle(0, index, step);
    EXPECT_EQ(service.Served(spec.tenant), 50 * TenantService::kOutputWeight) << step;
  }
}

// The worker's slots and requests limit its unacknowledged plans.
TEST(Uncoupled, AWorkerThatDoesNotReportGetsNoFurtherPlans) {
  Ranks ranks({{.slots = 20, .kv_tokens = kAmple}});
  for (RequestId id = 1; id <= 40; ++id) EXPECT_EQ(ranks.Place(id).empty(), id > 20);
  for (RequestId id = 1; id <= 20; ++id) {
    EXPECT_EQ(ranks.group.Cancel(id), CancelOutcome::kDropped);
    EXPECT_TRUE(ranks.group.MakePlan().has_value());
    EXPECT_EQ(ranks.group.Cancel(id), CancelOutcome::kDropped) << "twice";
    EXPECT_FALSE(ranks.group.MakePlan().has_value());
  }
  ASSERT_TRUE(ranks.Report(0, 1, 40, 0).ok());
  EXPECT_EQ(ranks.group.MakePlan()->placements.size(), 20u);
}

// With reservations memory is never exceeded. Otherwise admission counts each worker's own steps: a request
// may enter some steps before or after the predicted one, so memory is sometimes exceeded by as much; the
// worker then preempts its youngest request, which is placed again.
TEST(Uncoupled, AccountsStayExactAndFeasibleMemoryAdmitsMoreAndIsRarelyExceeded) {
  for (const std::string admission : {"none", "kv_feasible", "mc_sf:most=20"}) {
    const bool reserves = admission == "none";
    int64_t preempted = 0, promised = 0, requests = 0;
    for (const char* policy : {"jffc", "least_tokens", "bf_io_auto"}) {
      for (uint64_t seed = 1; seed <= 15; ++seed) {
        SCOPED_TRACE(absl::StrCat(admission, ", ", policy, ", seed ", seed));
        Cluster cluster({.admission = ParseAdmission(admission)->kv}, {policy, {}}, {},
                        *MakeLookahead(reserves ? "none" : "max_tokens"));
        bfio::testing::ClusterSession session(&cluster, {.seed = seed,
                                                         .most_groups = 1,
                                                         .kinds = {GroupKind::kIndependent},
                                                         .ample_kv = false,
                                                         .reserves = reserves});
        session.Run(300);
        preempted += session.preempted(), promised += session.promised(), requests += session.requests();
        if (::testing::Test::HasFailure()) return;
      }
    }
    EXPECT_LE(preempted, reserves ? 0 : requests / 40) << admission << ", of " << requests;
    EXPECT_GE(promised, 10 * preempted) << "no more than by reserving: " << preempted;
  }
}

}  // namespace bfio::core::uncoupled_test
