// Workers that share no barrier: each counts its own steps, and the accounts are exact nevertheless.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "router/core/admission/admission_text.h"
#include "tests/testing/one_group.h"
#include "tests/testing/uncoupled_session.h"

namespace bfio::core {
namespace {

using bfio::testing::OneGroup;

RequestSpec Wanted(RequestId id, int64_t prefill = 10, int64_t max_new = 5) {
  return {.id = id, .prefill_tokens = prefill, .max_new_tokens = max_new};
}

std::unique_ptr<OneGroup> Uncoupled(const char* policy, std::vector<WorkerSpec> workers) {
  auto scheduler = std::make_unique<OneGroup>(SchedulerOptions(), *MakePolicy(policy, {}), nullptr,
                                              GroupKind::kIndependent);
  std::vector<EpochMember> members(workers.size());
  for (size_t g = 0; g < workers.size(); ++g) members[g].spec = workers[g];
  EXPECT_TRUE(scheduler->OpenEpoch(members).empty());
  return scheduler;
}

absl::Status ReportStep(OneGroup& scheduler, WorkerIndex worker, int64_t step, int64_t applied, int64_t load,
                        std::vector<RequestId> finished = {}, bool idle = false) {
  StepReport report = {
      .step = step, .applied_plan = applied, .load_tokens = load, .finished = finished, .group_idle = idle};
  return scheduler.OnReport(worker, report);
}

TEST(Uncoupled, EachWorkerGetsPlansForItsOwnSteps) {
  const auto scheduler =
      Uncoupled("jffc", {{.slots = 1, .kv_tokens = 100}, {.slots = 3, .kv_tokens = 100, .service_time = 2}});
  EXPECT_TRUE(scheduler->Parked());
  EXPECT_FALSE(scheduler->MakePlan().has_value());
  ASSERT_TRUE(scheduler->Enqueue(Wanted(1)).ok());
  auto plan = scheduler->MakePlan();
  ASSERT_TRUE(plan.has_value());
  EXPECT_EQ(plan->apply_steps, (std::vector<int64_t>{1, 0})) << "the fastest alone";
  // The fast worker is full, so a plan for the slow one is made at once, whatever the fast one has reported.
  ASSERT_TRUE(scheduler->Enqueue(Wanted(2)).ok());
  EXPECT_EQ(scheduler->MakePlan()->apply_steps, (std::vector<int64_t>{0, 1}));
  ASSERT_TRUE(ReportStep(*scheduler, 0, 1, 1, 10).ok());
  ASSERT_TRUE(ReportStep(*scheduler, 0, 2, 1, 11).ok());
  ASSERT_TRUE(ReportStep(*scheduler, 0, 3, 1, 12).ok()) << "no step waits for the other's";
  ASSERT_TRUE(ReportStep(*scheduler, 1, 1, 1, 10).ok());
  ASSERT_TRUE(scheduler->Enqueue(Wanted(3)).ok());
  EXPECT_EQ(scheduler->MakePlan()->apply_steps, (std::vector<int64_t>{0, 3})) << "it is in step 2";
  ASSERT_TRUE(scheduler->Enqueue(Wanted(4)).ok());
  EXPECT_EQ(scheduler->MakePlan()->apply_steps, (std::vector<int64_t>{0, 4})) << "their numbers grow";
  ASSERT_TRUE(scheduler->Enqueue(Wanted(5)).ok());
  EXPECT_FALSE(scheduler->MakePlan().has_value()) << "all slots are taken";
  ASSERT_TRUE(ReportStep(*scheduler, 0, 4, 1, 13, {1}, true).ok());
  EXPECT_EQ(scheduler->MakePlan()->apply_steps, (std::vector<int64_t>{5, 0})) << "the place that falls free";
  EXPECT_EQ(scheduler->totals().drift_tokens, 0);
}

// A plan's number is not a step of the worker, so a plan cannot be late.
TEST(Uncoupled, NoPlanIsLate) {
  const auto scheduler = Uncoupled("jffc", {{.slots = 2, .kv_tokens = 100}});
  ASSERT_TRUE(scheduler->Enqueue(Wanted(1)).ok());
  ASSERT_EQ(scheduler->MakePlan()->apply_steps, (std::vector<int64_t>{1}));
  for (int64_t step = 1; step <= 3; ++step) ASSERT_TRUE(ReportStep(*scheduler, 0, step, 1, 9 + step).ok());
  ASSERT_TRUE(scheduler->Enqueue(Wanted(2)).ok());
  ASSERT_EQ(scheduler->MakePlan()->apply_steps, (std::vector<int64_t>{5}));
  // The plan is on its way while the worker runs steps 4 to 6.
  for (int64_t step = 4; step <= 6; ++step) ASSERT_TRUE(ReportStep(*scheduler, 0, step, 1, 9 + step).ok());
  ASSERT_TRUE(ReportStep(*scheduler, 0, 7, 5, 16 + 10).ok());
  EXPECT_EQ(scheduler->totals().late_plans, 0);
  EXPECT_EQ(scheduler->totals().drift_tokens, 0);
}

TEST(Uncoupled, AcknowledgingAnUnknownPlanIsAnError) {
  const auto scheduler = Uncoupled("jffc", {{.slots = 1, .kv_tokens = 100}, {.slots = 1, .kv_tokens = 100}});
  ASSERT_TRUE(scheduler->Enqueue(Wanted(1)).ok());
  ASSERT_TRUE(scheduler->MakePlan().has_value());
  EXPECT_EQ(ReportStep(*scheduler, 1, 1, 1, 0).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(ReportStep(*scheduler, 0, 1, 1, 10).ok());
}

// The worker's slots and requests limit its unacknowledged plans.
TEST(Uncoupled, AWorkerThatDoesNotReportGetsNoFurtherPlans) {
  const auto scheduler = Uncoupled("jffc", {{.slots = 20, .kv_tokens = 1 << 20}});
  int plans = 0;
  for (RequestId id = 1; id <= 40; ++id) {
    ASSERT_TRUE(scheduler->Enqueue(Wanted(id)).ok());
    plans += scheduler->MakePlan().has_value() ? 1 : 0;
  }
  EXPECT_EQ(plans, 20);
  for (RequestId id = 1; id <= 20; ++id) {
    EXPECT_EQ(scheduler->Cancel(id), CancelOutcome::kDropped);
    EXPECT_TRUE(scheduler->MakePlan().has_value());
    EXPECT_EQ(scheduler->Cancel(id), CancelOutcome::kDropped) << "twice";
    EXPECT_FALSE(scheduler->MakePlan().has_value());
  }
  ASSERT_TRUE(ReportStep(*scheduler, 0, 1, 40, 0).ok());
  EXPECT_EQ(scheduler->MakePlan()->placements.size(), 20u);
}

// All arrivals within one step of a worker enter its next step, however many plans carry them, and are
// counted for that step. None of them goes to the slow worker.
TEST(Uncoupled, ArrivalsWithinAStepEnterTogether) {
  const auto scheduler = Uncoupled(
      "jffc", {{.slots = 30, .kv_tokens = 1 << 20}, {.slots = 30, .kv_tokens = 1 << 20, .service_time = 2}});
  ASSERT_TRUE(scheduler->Enqueue(Wanted(1)).ok());
  ASSERT_TRUE(scheduler->MakePlan().has_value());
  ASSERT_TRUE(ReportStep(*scheduler, 0, 1, 1, 10).ok());
  int64_t number = 0;
  for (RequestId id = 2; id <= 25; ++id) {
    ASSERT_TRUE(scheduler->Enqueue(Wanted(id)).ok());
    const auto plan = scheduler->MakePlan();
    ASSERT_TRUE(plan.has_value());
    ASSERT_EQ(plan->apply_steps[1], 0) << "the fast one has a free slot";
    number = plan->apply_steps[0];
  }
  ASSERT_TRUE(ReportStep(*scheduler, 0, 2, 1, 11).ok());
  ASSERT_TRUE(ReportStep(*scheduler, 0, 3, number, 12 + 24 * 10).ok());
  EXPECT_EQ(scheduler->Account(0).active, 25);
  EXPECT_EQ(scheduler->Account(0).inflight, 0);
  EXPECT_EQ(scheduler->totals().drift_tokens, 0);
  // After all requests have ended, the worker is idle although plan numbers are far ahead of its steps.
  std::vector<RequestId> all;
  for (RequestId id = 1; id <= 25; ++id) all.push_back(id);
  ASSERT_TRUE(ReportStep(*scheduler, 0, 4, number, 13 + 24 * 11, all, true).ok());
  EXPECT_TRUE(scheduler->Account(0).idle);
  EXPECT_TRUE(scheduler->Parked());
  ASSERT_TRUE(scheduler->Enqueue(Wanted(26)).ok());
  EXPECT_EQ(scheduler->MakePlan()->apply_steps, (std::vector<int64_t>{number + 1, 0}));
  EXPECT_FALSE(scheduler->Account(0).idle) << "it has a plan to apply";
}

struct Tally {
  int64_t preempted = 0, promised = 0, requests = 0;
};

Tally RunSession(const char* policy, uint64_t seed, const char* admission) {
  const bool reserves = admission == std::string("none");
  SchedulerOptions options = {.admission = ParseAdmission(admission)->kv};
  OneGroup scheduler(options, *MakePolicy(policy, {}), *MakeLookahead(reserves ? "none" : "max_tokens"),
                     GroupKind::kIndependent);
  bfio::testing::UncoupledSession<OneGroup> session(&scheduler, seed, reserves);
  session.Run(600);
  return {session.preempted(), session.promised(), session.requests()};
}

TEST(Uncoupled, AccountsStayExactWhateverTheWorkersPaces) {
  for (const char* policy : {"jffc", "least_tokens", "bf_io_auto"}) {
    for (uint64_t seed = 1; seed <= 40; ++seed) {
      SCOPED_TRACE(absl::StrCat(policy, ", seed ", seed));
      RunSession(policy, seed, "none");
      if (::testing::Test::HasFailure()) return;
    }
  }
}

// Admission counts each worker's own steps. A request may enter some steps before or after the predicted one,
// so memory is sometimes exceeded by as much; the worker then preempts its youngest request, which is placed
// again.
TEST(Uncoupled, FeasibleMemoryAdmitsMoreAndIsRarelyExceeded) {
  for (const char* admission : {"kv_feasible", "mc_sf:most=20"}) {
    Tally all;
    for (const char* policy : {"jffc", "least_tokens", "bf_io_auto"}) {
      for (uint64_t seed = 1; seed <= 30; ++seed) {
        SCOPED_TRACE(absl::StrCat(admission, ", ", policy, ", seed ", seed));
        const Tally one = RunSession(policy, seed, admission);
        all = {all.preempted + one.preempted, all.promised + one.promised, all.requests + one.requests};
        if (::testing::Test::HasFailure()) return;
      }
    }
    EXPECT_LT(all.preempted, all.requests / 50) << admission << ", of " << all.requests;
    EXPECT_GT(all.promised, 10 * all.preempted) << "no more than by reserving: " << all.preempted;
    RecordProperty(absl::StrCat("preempted_", absl::string_view(admission, 5)),
                   static_cast<int>(all.preempted));
    RecordProperty(absl::StrCat("promised_", absl::string_view(admission, 5)),
                   static_cast<int>(all.promised));
    RecordProperty(absl::StrCat("requests_", absl::string_view(admission, 5)),
                   static_cast<int>(all.requests));
  }
}

}  // namespace
}  // namespace bfio::core
