// The loads that the scheduler's snapshots predict, compared with the later loads: random traffic on model
// workers, lockstep and pipelined, with cancellations. With the oracle lookahead the outlook must be exact.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "common/base/rng.h"
#include "tests/testing/one_group.h"

namespace bfio::core {
namespace {

using bfio::testing::OneGroup;

constexpr int32_t kSlots = 4;

// Places requests at random and records the snapshots.
class Spy : public Policy {
 public:
  struct Seen {
    int64_t step = 0;
    int32_t horizon = 0;
    std::vector<WorkerView> workers;
    std::vector<WaitingView> waiting;
    std::vector<double> load, curves;
    double Load(int32_t g, int32_t h) const { return load[g * (horizon + 1) + h]; }
    double Curve(size_t i, int32_t h) const { return curves[waiting[i].curve * (horizon + 1) + h]; }
  };
  Spy(int32_t horizon, uint64_t seed) : horizon_(horizon), rng_(seed) {}
  absl::string_view name() const override { return "spy"; }
  int32_t horizon() const override { return horizon_; }
  void Decide(const Snapshot& snapshot, Decision& decision) override {
    const Outlook& o = snapshot.outlook;
    seen = {snapshot.step,
            o.horizon,
            {snapshot.workers.begin(), snapshot.workers.end()},
            {snapshot.waiting.begin(), snapshot.waiting.end()},
            {o.load.begin(), o.load.end()},
            {o.curves.begin(), o.curves.end()}};
    ++decisions;
    if (!places) return;
    std::vector<WorkerView> workers = seen.workers;
    for (int32_t i = 0; i < static_cast<int32_t>(snapshot.waiting.size()); ++i) {
      const auto g = static_cast<WorkerIndex>(rng_.Below(workers.size()));
      if (workers[g].free_slots < 1) continue;
      --workers[g].free_slots;
      decision.assignments.push_back({i, g});
    }
  }
  void set_horizon(int32_t horizon) { horizon_ = horizon; }
  Seen seen;
  int decisions = 0;
  // False: records only.
  bool places = true;

 private:
  int32_t horizon_;
  Rng rng_;
};

struct Known {
  int64_t prefill = 0, output = 0, max_new = 0;
  // The worker on which it was placed, and its first step there.
  WorkerIndex worker = -1;
  int64_t first = 0;
  bool cancelled = false;
  // Its worker has reported its end, or has dropped it.
  bool gone = false;

  int64_t last(bool oracle) const { return first + (oracle ? output : max_new) - 1; }
};

// Workers that apply every plan in time.
struct OutlookWorld {
  OutlookWorld(const std::string& lookahead, PlanMode mode, int32_t horizon, uint64_t seed, int32_t workers)
      : oracle(lookahead == "oracle"), rng(seed), workers(workers) {
    SchedulerOptions options = {.plan_mode = mode};
    auto owned = std::make_unique<Spy>(horizon, seed + 1);
    spy = owned.get();
    scheduler = std::make_unique<OneGroup>(options, std::move(owned), *MakeLookahead(lookahead));
    EpochMember member = {.spec = {kSlots, 1 << 30, true}};
    scheduler->OpenEpoch(std::vector<EpochMember>(workers, member));
  }

  void Arrive() {
    RequestSpec spec = {.id = next++};
    Known known;
    known.prefill = spec.prefill_tokens = 1 + static_cast<int64_t>(rng.Below(100));
    known.max_new = spec.max_new_tokens = 1 + static_cast<int64_t>(rng.Below(12));
    known.output = 1 + static_cast<int64_t>(rng.Below(spec.max_new_tokens));
    spec.predicted_output_tokens = known.output;
    ASSERT_TRUE(scheduler->Enqueue(spec).ok());
    requests[spec.id] = known;
  }

  void CancelOne() {
    if (next == 1) return;
    const RequestId id = 1 + rng.Below(next - 1);
    if (scheduler->Cancel(id) != CancelOutcome::kUnknown) requests[id].cancelled = true;
  }

  void Plan() {
    while (true) {
      const int before = spy->decisions;
      const auto plan = scheduler->MakePlan();
      if (spy->decisions > before) Check();
      if (!plan) return;
      plans.insert(plan->apply_step);
      for (const Placement& p : plan->placements) {
        requests[p.id].worker = p.worker;
        requests[p.id].first = plan->apply_step;
      }
      for (const Drop& drop : plan->drops) drops[plan->apply_step].push_back(drop.id);
    }
  }

  void Step(int64_t step) {
    for (const RequestId id : drops[step]) requests[id].gone = true;
    std::vector<StepReport> reports(workers);
    std::vector<std::vector<RequestId>> finished(workers);
    std::vector<int32_t> active(workers, 0);
    for (auto& [id, r] : requests) {
      if (r.worker < 0 || r.gone || step < r.first) continue;
      reports[r.worker].load_tokens += r.prefill + step - r.first;
      if (step == r.first + r.output - 1) {
        r.gone = true;
        finished[r.worker].push_back(id);
      } else {
        ++active[r.worker];
      }
    }
    bool idle = true;
    for (const auto& [id, r] : requests) idle = idle && (r.worker < 0 || r.gone);
    for (int32_t g = 0; g < workers; ++g) {
      reports[g].step = step;
      reports[g].applied_plan = Applied(step);
      reports[g].finished = finished[g];
      reports[g].group_idle = idle;
      ASSERT_TRUE(scheduler->OnReport(g, reports[g]).ok());
    }
  }
  // The latest plan that is due: plans are applied in time.
  int64_t Applied(int64_t step) const {
    const auto after = plans.upper_bound(step);
    return after == plans.begin() ? 0 : *std::prev(after);
  }

  void Check() {
    const Spy::Seen& seen = spy->seen;
    ++checked;
    for (int32_t g = 0; g < workers; ++g) {
      for (int32_t h = 0; h <= seen.horizon; ++h) {
        int64_t load = 0;
        for (const auto& [id, r] : requests) {
          if (r.worker != g) continue;
          const int64_t step = seen.step + h;
          // With max_tokens, an early end is known only from the report.
          const bool stays = !r.cancelled && step <= r.last(oracle) && (oracle || !r.gone);
          if (stays) load += r.prefill + step - r.first;
        }
        ASSERT_EQ(seen.Load(g, h), static_cast<double>(load)) << "worker " << g << ", h " << h;
      }
    }
    for (size_t i = 0; i < seen.waiting.size(); ++i) {
      const Known& r = requests.at(seen.waiting[i].id);
      for (int32_t h = 0; h <= seen.horizon; ++h) {
        ASSERT_EQ(seen.Curve(i, h), h < (oracle ? r.output : r.max_new) ? 1 : 0);
      }
    }
  }

  bool oracle;
  Rng rng;
  int32_t workers;
  Spy* spy = nullptr;
  std::unique_ptr<OneGroup> scheduler;
  RequestId next = 1;
  std::map<RequestId, Known> requests;
  std::map<int64_t, std::vector<RequestId>> drops;
  std::set<int64_t> plans;
  int checked = 0;
};

struct Setting {
  const char* lookahead;
  PlanMode mode;
  int32_t horizon;
};

class OutlookTest : public ::testing::TestWithParam<Setting> {};

TEST_P(OutlookTest, IsExactUnderRandomTraffic) {
  int checked = 0;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    OutlookWorld world(GetParam().lookahead, GetParam().mode, GetParam().horizon, seed,
                       1 + static_cast<int>(seed % 3));
    int64_t step = 0;
    for (int i = 0; i < 120; ++i) {
      for (uint64_t n = world.rng.Below(3); n > 0; --n) world.Arrive();
      if (world.rng.Below(6) == 0) world.CancelOne();
      world.Plan();
      if (HasFailure()) FAIL() << "seed " << seed << ", after step " << step;
      if (!world.scheduler->Parked()) world.Step(++step);
    }
    EXPECT_EQ(world.scheduler->totals().drift_tokens, 0);
    checked += world.checked;
  }
  EXPECT_GT(checked, 2000);
}

INSTANTIATE_TEST_SUITE_P(Settings, OutlookTest,
                         ::testing::Values(Setting{"oracle", PlanMode::kLockstep, 5},
                                           Setting{"oracle", PlanMode::kPipelined, 5},
                                           Setting{"oracle", PlanMode::kPipelined, 1},
                                           Setting{"oracle", PlanMode::kPipelined, 500},
                                           Setting{"max_tokens", PlanMode::kLockstep, 5},
                                           Setting{"max_tokens", PlanMode::kPipelined, 20}),
                         [](const auto& param) {
                           return std::string(param.param.lookahead) +
                                  (param.param.mode == PlanMode::kLockstep ? "_lockstep_" : "_pipelined_") +
                                  std::to_string(param.param.horizon);
                         });

// --- one worker, step by step ---

struct One {
  explicit One(const std::string& lookahead, int32_t horizon = 3, PlanMode mode = PlanMode::kLockstep) {
    SchedulerOptions options = {.plan_mode = mode};
    auto owned = std::make_unique<Spy>(horizon, 1);
    spy = owned.get();
    scheduler = std::make_unique<OneGroup>(options, std::move(owned), *MakeLookahead(lookahead));
    EpochMember member = {.spec = {kSlots, 1000, true}};
    scheduler->OpenEpoch({member});
  }
  void Enqueue(RequestId id, int64_t prefill, int64_t predicted, int64_t max_new = 50) {
    RequestSpec spec = {
        .id = id, .prefill_tokens = prefill, .max_new_tokens = max_new, .predicted_output_tokens = predicted};
    ASSERT_TRUE(scheduler->Enqueue(spec).ok());
  }
  void Report(int64_t step, int64_t applied, int64_t load, std::vector<RequestId> finished = {}) {
    StepReport report = {.step = step, .applied_plan = applied, .load_tokens = load, .finished = finished};
    ASSERT_TRUE(scheduler->OnReport(0, report).ok());
  }
  Spy* spy = nullptr;
  std::unique_ptr<OneGroup> scheduler;
};

TEST(Outlook, IsEmptyWithoutHorizonOrWithoutLookahead) {
  One none("none", 5), blind("oracle", 0);
  for (One* one : {&none, &blind}) {
    one->Enqueue(1, 10, 5);
    ASSERT_TRUE(one->scheduler->MakePlan());
    EXPECT_EQ(one->spy->seen.horizon, 0);
    EXPECT_TRUE(one->spy->seen.load.empty());
    EXPECT_TRUE(one->spy->seen.curves.empty());
  }
}

TEST(Outlook, CurvesOfAnEarlierOutlookAreNotNamedOnceThereIsNone) {
  One one("oracle");
  for (RequestId id = 1; id <= 12; ++id) one.Enqueue(id, 10, static_cast<int64_t>(id % 3) + 1);
  one.scheduler->MakePlan();
  one.Report(1, 1, 10 * one.scheduler->Account(0).inflight);
  one.spy->set_horizon(0);
  one.scheduler->MakePlan();
  ASSERT_GT(one.spy->seen.waiting.size(), 4u);
  for (const WaitingView& view : one.spy->seen.waiting) EXPECT_EQ(view.curve, 0);
}

TEST(Outlook, OutlivingAPredictionExtendsItByAsMuchAgain) {
  One one("oracle", 6);
  one.Enqueue(1, 100, 2);
  one.scheduler->MakePlan();
  one.Enqueue(2, 1, 1);  // a request must wait, or no decision is made
  one.spy->places = false;
  one.Report(1, 1, 100);
  one.scheduler->MakePlan();
  EXPECT_EQ(one.spy->seen.Load(0, 0), 101);
  EXPECT_EQ(one.spy->seen.Load(0, 1), 0);
  for (int64_t step = 2; step <= 4; ++step) {
    one.Report(step, step, 99 + step);
    one.scheduler->MakePlan();
  }
  // After 4 steps, 2 more than predicted, 3 more are expected: steps 5, 6 and 7.
  EXPECT_EQ(one.spy->seen.Load(0, 0), 104);
  EXPECT_EQ(one.spy->seen.Load(0, 2), 106);
  EXPECT_EQ(one.spy->seen.Load(0, 3), 0);
}

TEST(Outlook, DriftScalesTheLoad) {
  One one("oracle");
  one.Enqueue(1, 100, 20);
  one.scheduler->MakePlan();
  one.Report(1, 1, 201);
  one.Enqueue(2, 10, 5);
  one.scheduler->MakePlan();
  // The worker holds twice the account of its request: the present load is exact, the growth scaled.
  EXPECT_EQ(one.spy->seen.workers[0].load_tokens, 202);
  EXPECT_EQ(one.spy->seen.Load(0, 0), 202);
  EXPECT_EQ(one.spy->seen.Load(0, 2), 206);
}

TEST(Outlook, ALatePlanStartsInTheNextStepAtTheEarliest) {
  One one("oracle", 3, PlanMode::kPipelined);
  one.Enqueue(1, 100, 9);
  ASSERT_EQ(one.scheduler->MakePlan()->apply_step, 1);
  one.Report(1, 1, 100);
  one.Enqueue(2, 50, 2);
  while (one.scheduler->placed() < 2) ASSERT_EQ(one.scheduler->MakePlan()->apply_step, 3);
  one.Report(2, 1, 101);
  one.scheduler->MakePlan();  // for step 4
  one.Report(3, 1, 102);      // the plan for step 3 has not been applied
  one.Enqueue(3, 1, 1);
  one.spy->places = false;
  one.scheduler->MakePlan();  // for step 5: request 2 runs in steps 4 and 5 if its plan is applied now
  EXPECT_EQ(one.spy->seen.step, 5);
  EXPECT_EQ(one.spy->seen.Load(0, 0), 104 + 51);
  EXPECT_EQ(one.spy->seen.Load(0, 1), 105);
}

TEST(Outlook, ViewsCarryTheWorkersStateAndTheWaitingRequests) {
  SchedulerOptions options;
  auto owned = std::make_unique<Spy>(0, 1);
  Spy* spy = owned.get();
  OneGroup scheduler(options, std::move(owned));
  EpochMember member = {
      .spec = {.slots = 2, .kv_tokens = 77, .accepts_new = false, .time_per_token = 1.5, .time_offset = 9}};
  scheduler.OpenEpoch({member});
  RequestSpec spec = {.id = 1, .prefill_tokens = 3, .max_new_tokens = 21, .tenant = 4, .generated_tokens = 2};
  ASSERT_TRUE(scheduler.Enqueue(spec).ok());
  scheduler.MakePlan();
  EXPECT_EQ(spy->seen.workers[0].total_kv_tokens, 77);
  EXPECT_FALSE(spy->seen.workers[0].accepts_new);
  EXPECT_EQ(spy->seen.workers[0].time_per_token, 1.5);
  EXPECT_EQ(spy->seen.workers[0].time_offset, 9);
  EXPECT_EQ(spy->seen.waiting[0].max_new_tokens, 21);
  EXPECT_EQ(spy->seen.waiting[0].tenant, 4u);
  EXPECT_EQ(spy->seen.waiting[0].generated_tokens, 2);
}

}  // namespace
}  // namespace bfio::core
