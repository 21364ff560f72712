// Workers that share no barrier: each counts its own steps, and the accounts stay exact all the same.
#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/rng.h"
#include "router/core/decide/scheduler.h"

namespace bfio::core {
namespace {

RequestSpec Wanted(RequestId id, int64_t prefill = 10, int64_t max_new = 5) {
  RequestSpec spec;
  spec.id = id;
  spec.prefill_tokens = prefill;
  spec.max_new_tokens = max_new;
  return spec;
}

std::unique_ptr<Scheduler> Uncoupled(const char* policy, std::vector<WorkerSpec> workers) {
  SchedulerOptions options;
  options.coupled = false;
  auto scheduler = std::make_unique<Scheduler>(options, *MakePolicy(policy, {}));
  std::vector<EpochMember> members(workers.size());
  for (size_t g = 0; g < workers.size(); ++g) members[g].spec = workers[g];
  EXPECT_TRUE(scheduler->OpenEpoch(members).empty());
  return scheduler;
}

absl::Status Report(Scheduler& scheduler, WorkerIndex worker, int64_t step, int64_t applied, int64_t load,
                    std::vector<RequestId> finished = {}, bool idle = false) {
  StepReport report;
  report.step = step;
  report.applied_plan = applied;
  report.load_tokens = load;
  report.finished = finished;
  report.group_idle = idle;
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
  // The fast one is full: the slow one is decided upon at once, whatever the other has reported.
  ASSERT_TRUE(scheduler->Enqueue(Wanted(2)).ok());
  EXPECT_EQ(scheduler->MakePlan()->apply_steps, (std::vector<int64_t>{0, 1}));
  ASSERT_TRUE(Report(*scheduler, 0, 1, 1, 10).ok());
  ASSERT_TRUE(Report(*scheduler, 0, 2, 1, 11).ok());
  ASSERT_TRUE(Report(*scheduler, 0, 3, 1, 12).ok()) << "no step waits for the other's";
  ASSERT_TRUE(Report(*scheduler, 1, 1, 1, 10).ok());
  ASSERT_TRUE(scheduler->Enqueue(Wanted(3)).ok());
  EXPECT_EQ(scheduler->MakePlan()->apply_steps, (std::vector<int64_t>{0, 3})) << "it is in step 2";
  ASSERT_TRUE(scheduler->Enqueue(Wanted(4)).ok());
  EXPECT_EQ(scheduler->MakePlan()->apply_steps, (std::vector<int64_t>{0, 4})) << "their numbers grow";
  ASSERT_TRUE(scheduler->Enqueue(Wanted(5)).ok());
  EXPECT_FALSE(scheduler->MakePlan().has_value()) << "all slots are taken";
  ASSERT_TRUE(Report(*scheduler, 0, 4, 1, 13, {1}, true).ok());
  EXPECT_EQ(scheduler->MakePlan()->apply_steps, (std::vector<int64_t>{5, 0})) << "the place that falls free";
  EXPECT_EQ(scheduler->totals().drift_tokens, 0);
}

TEST(Uncoupled, APlanThatWasNeverMadeIsNoneToHaveApplied) {
  const auto scheduler = Uncoupled("jffc", {{.slots = 1, .kv_tokens = 100}, {.slots = 1, .kv_tokens = 100}});
  ASSERT_TRUE(scheduler->Enqueue(Wanted(1)).ok());
  ASSERT_TRUE(scheduler->MakePlan().has_value());
  EXPECT_EQ(Report(*scheduler, 1, 1, 1, 0).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(Report(*scheduler, 0, 1, 1, 10).ok());
}

// Its slots and the requests in them bound the plans that it has not acknowledged.
TEST(Uncoupled, AWorkerThatDoesNotReportIsNotGivenPlansForEver) {
  const auto scheduler = Uncoupled("jffc", {{.slots = 20, .kv_tokens = 1 << 20}});
  int plans = 0;
  for (RequestId id = 1; id <= 40; ++id) {
    ASSERT_TRUE(scheduler->Enqueue(Wanted(id)).ok());
    plans += scheduler->MakePlan().has_value() ? 1 : 0;
  }
  EXPECT_EQ(plans, 20);
  for (RequestId id = 1; id <= 20; ++id) {
    EXPECT_EQ(scheduler->Cancel(id), Scheduler::CancelOutcome::kDropped);
    EXPECT_TRUE(scheduler->MakePlan().has_value());
    EXPECT_EQ(scheduler->Cancel(id), Scheduler::CancelOutcome::kDropped) << "twice";
    EXPECT_FALSE(scheduler->MakePlan().has_value());
  }
  ASSERT_TRUE(Report(*scheduler, 0, 1, 40, 0).ok());
  EXPECT_EQ(scheduler->MakePlan()->placements.size(), 20u);
}

// Another scheduler that goes on with this one's state.
std::unique_ptr<Scheduler> Successor(const Scheduler& scheduler) {
  SchedulerOptions options;
  options.coupled = false;
  auto successor = std::make_unique<Scheduler>(options, *MakePolicy("jffc", {}));
  const absl::Status status = successor->Restore(scheduler.Save());
  EXPECT_TRUE(status.ok()) << status;
  return successor;
}

// Arrivals within one step of a worker all enter in its next, however many plans they take, and are reckoned
// so; none goes to the slow one for it.
TEST(Uncoupled, ArrivalsWithinAStepEnterTogether) {
  auto scheduler = Uncoupled(
      "jffc", {{.slots = 30, .kv_tokens = 1 << 20}, {.slots = 30, .kv_tokens = 1 << 20, .service_time = 2}});
  ASSERT_TRUE(scheduler->Enqueue(Wanted(1)).ok());
  ASSERT_TRUE(scheduler->MakePlan().has_value());
  ASSERT_TRUE(Report(*scheduler, 0, 1, 1, 10).ok());
  int64_t number = 0;
  for (RequestId id = 2; id <= 25; ++id) {
    ASSERT_TRUE(scheduler->Enqueue(Wanted(id)).ok());
    const auto plan = scheduler->MakePlan();
    ASSERT_TRUE(plan.has_value());
    ASSERT_EQ(plan->apply_steps[1], 0) << "the fast one has room";
    number = plan->apply_steps[0];
  }
  scheduler = Successor(*scheduler);
  ASSERT_TRUE(Report(*scheduler, 0, 2, 1, 11).ok());
  ASSERT_TRUE(Report(*scheduler, 0, 3, number, 12 + 24 * 10).ok());
  EXPECT_EQ(scheduler->Account(0).active, 25);
  EXPECT_EQ(scheduler->Account(0).inflight, 0);
  EXPECT_EQ(scheduler->totals().drift_tokens, 0);
  // All end: it is idle, its numbers far ahead of its steps, and owes nothing.
  std::vector<RequestId> all;
  for (RequestId id = 1; id <= 25; ++id) all.push_back(id);
  ASSERT_TRUE(Report(*scheduler, 0, 4, number, 13 + 24 * 11, all, true).ok());
  scheduler = Successor(*scheduler);
  EXPECT_TRUE(scheduler->Account(0).idle);
  EXPECT_TRUE(scheduler->Parked());
  ASSERT_TRUE(scheduler->Enqueue(Wanted(26)).ok());
  EXPECT_EQ(scheduler->MakePlan()->apply_steps, (std::vector<int64_t>{number + 1, 0}));
  EXPECT_FALSE(scheduler->Account(0).idle) << "it has a plan to apply";
}

// A worker as it behaves: a step when it holds something or has a plan, plans applied as they come.
struct Model {
  struct Held {
    int64_t load = 0, left = 0, reserved = 0;
  };
  struct Plan {
    int64_t apply_step = 0;
    std::vector<RequestSpec> placed;
    std::vector<RequestId> dropped;
  };
  WorkerSpec spec;
  int64_t step = 0, applied = 0;
  bool waits = true;
  std::map<RequestId, Held> held;
  // On their way to it, and its reports on theirs.
  std::deque<Plan> plans;
  std::deque<StepReport> reports;
  std::deque<std::vector<RequestId>> finished;

  bool CanStep() const { return !waits || !plans.empty(); }

  void Step() {
    ++step;
    while (!plans.empty()) {
      for (const RequestId id : plans.front().dropped) held.erase(id);
      for (const RequestSpec& request : plans.front().placed) {
        held[request.id] = {request.prefill_tokens, request.max_new_tokens, request.kv_reserve_tokens()};
      }
      applied = plans.front().apply_step;
      plans.pop_front();
    }
    StepReport report;
    report.step = step;
    report.applied_plan = applied;
    int64_t reserved = 0;
    for (auto& [id, request] : held) {
      report.load_tokens += request.load++;
      reserved += request.reserved;
    }
    EXPECT_LE(static_cast<int32_t>(held.size()), spec.slots);
    EXPECT_LE(reserved, spec.kv_tokens);
    std::vector<RequestId> ended;
    for (auto it = held.begin(); it != held.end();) {
      const bool ends = --it->second.left == 0;
      if (ends) ended.push_back(it->first);
      it = ends ? held.erase(it) : std::next(it);
    }
    waits = report.group_idle = held.empty();
    reports.push_back(report);
    finished.push_back(std::move(ended));
  }
};

class Session {
 public:
  Session(const char* policy, uint64_t seed) : rng_(seed), policy_(policy) { Open(); }

  void Run() {
    for (int turn = 0; turn < 600 && !::testing::Test::HasFailure(); ++turn) {
      switch (rng_.Below(8)) {
        case 0:
        case 1:
          Arrive();
          break;
        case 2:
          if (rng_.Below(4) == 0) Cancel();
          break;
        case 3:
          if (rng_.Below(30) == 0) Open();
          if (rng_.Below(20) == 0) TakeOn();
          break;
        default:
          Work();
      }
    }
    for (int turn = 0; turn < 20'000 && (!live_.empty() || scheduler_->placed() > 0); ++turn) Work();
    EXPECT_TRUE(live_.empty()) << live_.size() << " requests never ended";
    EXPECT_EQ(scheduler_->waiting() + scheduler_->placed(), 0);
    EXPECT_EQ(scheduler_->totals().drift_tokens, 0);
    EXPECT_EQ(scheduler_->totals().policy_violations, 0);
  }

 private:
  // Another membership: some workers stay with what they hold, what the others held is enqueued again.
  void Open() {
    if (scheduler_ == nullptr) scheduler_ = NewScheduler();
    for (size_t g = 0; g < workers_.size(); ++g) {
      while (!workers_[g].reports.empty()) Deliver(g);
    }
    std::vector<Model> next;
    for (Model& worker : workers_) {
      if (rng_.Below(3) == 0) continue;
      worker.plans.clear();
      worker.step = worker.applied = 0;
      worker.waits = true;
      next.push_back(std::move(worker));
    }
    while (next.empty() || rng_.Below(2) == 0) {
      next.emplace_back().spec = {.slots = 1 + static_cast<int32_t>(rng_.Below(4)),
                                  .kv_tokens = 60 + static_cast<int64_t>(rng_.Below(100)),
                                  .service_time = 1 + rng_.Uniform()};
    }
    workers_ = std::move(next);
    std::vector<EpochMember> members;
    for (const Model& worker : workers_) {
      EpochMember& member = members.emplace_back();
      member.spec = worker.spec;
      for (const auto& [id, request] : worker.held) member.resident.push_back({id, request.load});
    }
    for (const RequestId id : scheduler_->OpenEpoch(members)) scheduler_->Requeue(live_.at(id));
    Plan();
  }

  std::unique_ptr<Scheduler> NewScheduler() const {
    SchedulerOptions options;
    options.coupled = false;
    return std::make_unique<Scheduler>(options, *MakePolicy(policy_, {}));
  }

  // Another scheduler goes on with this one's state.
  void TakeOn() {
    auto other = NewScheduler();
    const absl::Status status = other->Restore(scheduler_->Save());
    EXPECT_TRUE(status.ok()) << status;
    scheduler_ = std::move(other);
  }

  void Arrive() {
    const RequestSpec request =
        Wanted(++last_, 1 + static_cast<int64_t>(rng_.Below(30)), 1 + static_cast<int64_t>(rng_.Below(20)));
    live_[request.id] = request;
    EXPECT_TRUE(scheduler_->Enqueue(request).ok());
    Plan();
  }

  void Cancel() {
    if (live_.empty()) return;
    const auto it = std::next(live_.begin(), static_cast<int64_t>(rng_.Below(live_.size())));
    EXPECT_NE(scheduler_->Cancel(it->first), Scheduler::CancelOutcome::kUnknown);
    live_.erase(it);
    Plan();
  }

  void Work() {
    const size_t g = rng_.Below(workers_.size());
    if (rng_.Below(2) == 0 && workers_[g].CanStep()) {
      workers_[g].Step();
    } else if (!workers_[g].reports.empty()) {
      Deliver(g);
      Plan();
    }
  }

  void Deliver(size_t g) {
    Model& worker = workers_[g];
    worker.reports.front().finished = worker.finished.front();
    const absl::Status status = scheduler_->OnReport(static_cast<WorkerIndex>(g), worker.reports.front());
    EXPECT_TRUE(status.ok()) << status;
    for (const RequestId id : worker.finished.front()) live_.erase(id);
    worker.reports.pop_front();
    worker.finished.pop_front();
  }

  void Plan() {
    while (const auto plan = scheduler_->MakePlan()) {
      ASSERT_EQ(plan->apply_steps.size(), workers_.size());
      std::vector<Model::Plan> parts(workers_.size());
      for (const Placement& placement : plan->placements) {
        EXPECT_GE(placement.wait_steps, 0);
        parts[placement.worker].placed.push_back(live_.at(placement.id));
      }
      for (const Drop& drop : plan->drops) parts[drop.worker].dropped.push_back(drop.id);
      for (size_t g = 0; g < parts.size(); ++g) {
        parts[g].apply_step = plan->apply_steps[g];
        if (parts[g].apply_step > 0) {
          EXPECT_TRUE(workers_[g].plans.empty() || workers_[g].plans.back().apply_step < parts[g].apply_step);
          workers_[g].plans.push_back(std::move(parts[g]));
        } else {
          EXPECT_TRUE(parts[g].placed.empty() && parts[g].dropped.empty());
        }
      }
    }
  }

  Rng rng_;
  const char* const policy_;
  std::unique_ptr<Scheduler> scheduler_;
  std::vector<Model> workers_;
  std::map<RequestId, RequestSpec> live_;
  RequestId last_ = 0;
};

TEST(Uncoupled, AccountsStayExactWhateverTheWorkersPaces) {
  for (const char* policy : {"jffc", "sa_jsq", "jiq", "least_tokens", "bf_io_auto"}) {
    for (uint64_t seed = 1; seed <= 40; ++seed) {
      SCOPED_TRACE(absl::StrCat(policy, ", seed ", seed));
      Session(policy, seed).Run();
      if (::testing::Test::HasFailure()) return;
    }
  }
}

}  // namespace
}  // namespace bfio::core
