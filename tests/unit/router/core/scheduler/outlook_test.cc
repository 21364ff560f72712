// The loads that the scheduler's snapshots predict, compared with the later loads: random traffic on model
// workers, lockstep and pipelined, with cancellations. With the oracle lookahead the outlook must be exact.
#include <gtest/gtest.h>

#include <functional>
#include <map>

#include "absl/memory/memory.h"
#include "common/base/rng.h"
#include "tests/unit/router/core/scheduler/step_group.h"

namespace bfio::core {
namespace {

using bfio::testing::Request;
using bfio::testing::StepGroup;

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
  Spy(int32_t horizon, uint64_t seed) : look_ahead(horizon), rng_(seed) {}
  absl::string_view name() const override { return "spy"; }
  int32_t horizon() const override { return look_ahead; }
  void Decide(const Snapshot& snapshot, Decision& decision) override {
    const Outlook& o = snapshot.outlook;
    seen = {snapshot.step,
            o.horizon,
            {snapshot.workers.begin(), snapshot.workers.end()},
            {snapshot.waiting.begin(), snapshot.waiting.end()},
            {o.load.begin(), o.load.end()},
            {o.curves.begin(), o.curves.end()}};
    on_decision();
    if (!places) return;
    std::vector<WorkerView> workers = seen.workers;
    for (int32_t i = 0; i < static_cast<int32_t>(snapshot.waiting.size()); ++i) {
      const auto g = static_cast<WorkerIndex>(rng_.Below(workers.size()));
      if (workers[g].free_slots < 1) continue;
      --workers[g].free_slots;
      decision.assignments.push_back({i, g});
    }
  }

  Seen seen;
  std::function<void()> on_decision = [] {};
  int32_t look_ahead;
  // False: records only.
  bool places = true;

 private:
  Rng rng_;
};

class SpiedGroup : public StepGroup {
 public:
  explicit SpiedGroup(const std::string& lookahead, int32_t horizon = 3, PlanMode mode = PlanMode::kLockstep,
                      uint64_t seed = 1, WorkerSpec worker = {.slots = 4, .kv_tokens = 1 << 30},
                      uint64_t workers = 1)
      : SpiedGroup(new Spy(horizon, seed), lookahead, mode, std::vector(workers, worker)) {}

  Spy* const spy;
  const Spy::Seen& seen;

 private:
  SpiedGroup(Spy* owned, const std::string& lookahead, PlanMode mode, const std::vector<WorkerSpec>& specs)
      : StepGroup(specs, absl::WrapUnique(owned), {.plan_mode = mode}, *MakeLookahead(lookahead)),
        spy(owned),
        seen(owned->seen) {}
};

// Random traffic on workers that apply every plan in time.
class OutlookGroup : public SpiedGroup {
 public:
  OutlookGroup(const std::string& lookahead, PlanMode mode, int32_t horizon, uint64_t seed)
      : SpiedGroup(lookahead, horizon, mode, seed + 1, {.slots = 4, .kv_tokens = 1 << 30}, 1 + seed % 3),
        oracle_(lookahead == "oracle"),
        rng_(seed) {
    spy->on_decision = [this] { Check(); };
  }

  void Turn() {
    for (uint64_t n = rng_.Below(3); n > 0; --n) {
      RequestSpec spec = Request(requests.size() + 1, 1 + static_cast<int64_t>(rng_.Below(100)),
                                 1 + static_cast<int64_t>(rng_.Below(12)));
      spec.predicted_output_tokens = 1 + static_cast<int64_t>(rng_.Below(spec.max_new_tokens));
      Enqueue(spec, *spec.predicted_output_tokens);
    }
    if (rng_.Below(6) == 0 && !requests.empty()) {
      const RequestId id = 1 + rng_.Below(requests.size());
      if (group.Cancel(id) != CancelOutcome::kUnknown) placed_[id].cancelled = true;
    }
    Step();
  }
  int checked = 0;

 protected:
  void OnPlan(const core::Plan& plan) override {
    for (const Placement& placement : plan.placements)
      placed_[placement.id] = {placement.worker, plan.apply_step, placed_[placement.id].cancelled};
  }

 private:
  // The worker on which a request was placed, and its first step there.
  struct Placed {
    WorkerIndex worker = -1;
    int64_t first = 0;
    bool cancelled = false;
  };
  // The steps that the lookahead expects.
  int64_t Expected(const Run& run) const { return oracle_ ? run.output : run.spec.max_new_tokens; }

  void Check() {
    ++checked;
    std::vector<std::vector<int64_t>> load(workers.size(),
                                           std::vector<int64_t>(static_cast<size_t>(seen.horizon) + 1));
    for (const auto& [id, at] : placed_) {
      if (at.worker < 0 || at.cancelled) continue;
      const Run& run = requests.at(id);
      // With max_tokens, an early end is known only from the report.
      if (!oracle_ && workers[at.worker].step >= at.first && Find(id) == nullptr) continue;
      for (int64_t step = seen.step; step <= seen.step + seen.horizon && step < at.first + Expected(run);
           ++step)
        load[at.worker][step - seen.step] += run.spec.prefill_tokens + step - at.first;
    }
    for (int32_t g = 0; g < std::ssize(workers); ++g) {
      for (int32_t h = 0; h <= seen.horizon; ++h)
        ASSERT_EQ(seen.Load(g, h), static_cast<double>(load[g][h])) << "worker " << g << ", h " << h;
    }
    for (size_t i = 0; i < seen.waiting.size(); ++i) {
      const int64_t expected = Expected(requests.at(seen.waiting[i].id));
      for (int32_t h = 0; h <= seen.horizon; ++h) ASSERT_EQ(seen.Curve(i, h), h < expected ? 1 : 0);
    }
  }

  const bool oracle_;
  Rng rng_;
  std::map<RequestId, Placed> placed_;
};

TEST(Outlook, IsExactUnderRandomTraffic) {
  const struct {
    const char* lookahead;
    PlanMode mode;
    int32_t horizon;
  } kSettings[] = {{"oracle", PlanMode::kLockstep, 5},     {"oracle", PlanMode::kPipelined, 5},
                   {"oracle", PlanMode::kPipelined, 1},    {"oracle", PlanMode::kPipelined, 500},
                   {"max_tokens", PlanMode::kLockstep, 5}, {"max_tokens", PlanMode::kPipelined, 20}};
  for (const auto& setting : kSettings) {
    int checked = 0;
    for (uint64_t seed = 1; seed <= 40; ++seed) {
      OutlookGroup group(setting.lookahead, setting.mode, setting.horizon, seed);
      for (int i = 0; i < 120 && !HasFailure(); ++i) group.Turn();
      ASSERT_FALSE(HasFailure()) << setting.lookahead << ", " << setting.horizon << ", seed " << seed
                                 << ", step " << group.workers[0].step;
      EXPECT_EQ(group.totals().drift_tokens, 0);
      checked += group.checked;
    }
    EXPECT_GT(checked, 2000);
  }
}

RequestSpec Predicted(RequestId id, int64_t prompt, int64_t predicted) {
  RequestSpec spec = Request(id, prompt);
  spec.predicted_output_tokens = predicted;
  return spec;
}

TEST(Outlook, CurvesOfAnEarlierOutlookAreNotNamedOnceThereIsNone) {
  SpiedGroup group("oracle");
  for (RequestId id = 1; id <= 12; ++id) group.Enqueue(Predicted(id, 10, static_cast<int64_t>(id % 3) + 1));
  group.Step();
  group.spy->look_ahead = 0;
  group.Plan();
  ASSERT_GT(group.seen.waiting.size(), 4u);
  for (const WaitingView& view : group.seen.waiting) EXPECT_EQ(view.curve, 0);
}

TEST(Outlook, DriftScalesTheLoad) {
  SpiedGroup group("oracle");
  group.Enqueue(Predicted(1, 100, 20));
  group.drift = 101;
  group.Step();
  group.Enqueue(Predicted(2, 10, 5));
  group.Plan();
  // The worker holds twice the account of its request: the present load is exact, the growth scaled.
  EXPECT_EQ(group.seen.workers[0].load_tokens, 202);
  EXPECT_EQ(group.seen.Load(0, 0), 202);
  EXPECT_EQ(group.seen.Load(0, 2), 206);
}

TEST(Outlook, ALatePlanStartsInTheNextStepAtTheEarliest) {
  SpiedGroup group("oracle", 3, PlanMode::kPipelined);
  group.Enqueue(Predicted(1, 100, 9));
  group.Step();
  group.Enqueue(Predicted(2, 50, 2));
  ASSERT_EQ(group.Plan(), "2@0");
  ASSERT_EQ(group.last.apply_step, 3);
  group.Step();
  group.arrive = false;
  group.Step();  // the plan for step 3 has not been applied
  group.Enqueue(Predicted(3, 1, 1));
  group.spy->places = false;
  group.Plan();  // for step 5: request 2 runs in steps 4 and 5 if its plan is applied now
  EXPECT_EQ(group.seen.step, 5);
  EXPECT_EQ(group.seen.Load(0, 0), 104 + 51);
  EXPECT_EQ(group.seen.Load(0, 1), 105);
}

}  // namespace
}  // namespace bfio::core
