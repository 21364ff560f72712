// Random traffic against a simple model of the workers: for any order of events no worker is over-filled,
// every request runs exactly once to its end or is cancelled, and the router's account equals the workers'
// state.
#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <set>

#include "common/base/rng.h"
#include "tests/testing/one_group.h"

namespace bfio::core {
namespace {

using bfio::testing::OneGroup;

class RandomFit : public Policy {
 public:
  explicit RandomFit(uint64_t seed) : rng_(seed) {}
  absl::string_view name() const override { return "random_fit"; }
  void Decide(const Snapshot& snapshot, Decision& decision) override {
    std::vector<WorkerView> workers(snapshot.workers.begin(), snapshot.workers.end());
    for (int32_t i = 0; i < static_cast<int32_t>(snapshot.waiting.size()); ++i) {
      const auto g = static_cast<WorkerIndex>(rng_.Below(workers.size()));
      if (workers[g].free_slots < 1 || workers[g].free_kv_tokens < snapshot.waiting[i].kv_reserve_tokens)
        continue;
      --workers[g].free_slots;
      workers[g].free_kv_tokens -= snapshot.waiting[i].kv_reserve_tokens;
      decision.assignments.push_back({i, g});
    }
  }

 private:
  Rng rng_;
};

// A worker as the protocol describes it, as plain sets.
struct ModelWorker {
  struct Running {
    int64_t load;
    int64_t remaining;
  };
  std::map<RequestId, Running> running;
  int64_t applied = 0;
};

struct World {
  World(PlanMode mode, uint64_t seed, int32_t workers) : rng(seed), models(workers) {
    SchedulerOptions options;
    options.plan_mode = mode;
    options.max_waiting = 20;
    scheduler = std::make_unique<OneGroup>(options, std::make_unique<RandomFit>(seed));
    std::vector<EpochMember> members(workers);
    for (EpochMember& member : members) member.spec = {kSlots, kKv, true};
    scheduler->OpenEpoch(members);
  }

  void Arrive() {
    RequestSpec spec;
    spec.id = next_id++;
    spec.prefill_tokens = 1 + static_cast<int64_t>(rng.Below(40));
    spec.max_new_tokens = 1 + static_cast<int64_t>(rng.Below(8));
    const int64_t output = 1 + static_cast<int64_t>(rng.Below(spec.max_new_tokens));
    if (!scheduler->Enqueue(spec).ok()) return;
    outputs[spec.id] = output;
    prefills[spec.id] = spec.prefill_tokens;
    reserve[spec.id] = spec.kv_reserve_tokens();
  }

  void Plan() {
    while (auto plan = scheduler->MakePlan()) plans.push_back(*std::move(plan));
  }

  void CancelSome() {
    if (next_id == 1 || rng.Below(4) != 0) return;
    const RequestId id = 1 + rng.Below(next_id - 1);
    if (scheduler->Cancel(id) != CancelOutcome::kUnknown) cancelled.insert(id);
  }

  // Runs step `step` on all models with the plans that have arrived; plans may arrive up to `lag` steps late.
  void Step(int64_t step) {
    std::vector<std::vector<RequestId>> finished(models.size());
    std::vector<int64_t> loads(models.size(), 0);
    for (const auto& plan : plans) {
      if (plan.apply_step > step) continue;
      for (const Drop& drop : plan.drops) {
        if (models[drop.worker].applied < plan.apply_step) models[drop.worker].running.erase(drop.id);
      }
      for (const Placement& p : plan.placements) {
        if (models[p.worker].applied >= plan.apply_step) continue;
        EXPECT_TRUE(started.insert(p.id).second) << "request " << p.id << " was placed twice";
        models[p.worker].running[p.id] = {prefills.at(p.id), outputs.at(p.id)};
      }
      for (ModelWorker& m : models) m.applied = std::max(m.applied, plan.apply_step);
    }
    std::erase_if(plans, [&](const core::Plan& plan) { return plan.apply_step <= step; });
    bool idle = true;
    for (size_t g = 0; g < models.size(); ++g) {
      EXPECT_LE(models[g].running.size(), static_cast<size_t>(kSlots));
      int64_t kv = 0;
      for (auto it = models[g].running.begin(); it != models[g].running.end();) {
        loads[g] += it->second.load++;
        kv += reserve.at(it->first);
        if (--it->second.remaining == 0) {
          finished[g].push_back(it->first);
          done.insert(it->first);
          it = models[g].running.erase(it);
        } else {
          ++it;
        }
      }
      EXPECT_LE(kv, kKv);
      idle = idle && models[g].running.empty();
    }
    for (const auto& plan : plans) idle = idle && plan.placements.empty();
    for (size_t g = 0; g < models.size(); ++g) {
      StepReport report;
      report.step = step;
      report.applied_plan = models[g].applied;
      report.load_tokens = loads[g];
      report.finished = finished[g];
      report.group_idle = idle;
      ASSERT_TRUE(scheduler->OnReport(static_cast<WorkerIndex>(g), report).ok());
    }
  }

  bool Waiting() const { return scheduler->Parked(); }

  static constexpr int32_t kSlots = 3;
  static constexpr int64_t kKv = 100;
  Rng rng;
  std::vector<ModelWorker> models;
  std::unique_ptr<OneGroup> scheduler;
  std::deque<core::Plan> plans;
  RequestId next_id = 1;
  std::map<RequestId, int64_t> outputs, prefills, reserve;
  std::set<RequestId> started, done, cancelled;
};

void RunWorld(PlanMode mode, uint64_t seed) {
  World world(mode, seed, 1 + static_cast<int32_t>(seed % 4));
  int64_t step = 0;
  for (int i = 0; i < 400; ++i) {
    for (uint64_t n = i < 300 ? world.rng.Below(4) : 0; n > 0; --n) world.Arrive();
    if (i < 300) world.CancelSome();
    world.Plan();
    if (world.Waiting()) continue;
    world.Step(++step);
  }
  EXPECT_EQ(world.scheduler->waiting(), 0);
  EXPECT_EQ(world.scheduler->placed(), 0);
  EXPECT_EQ(world.scheduler->totals().drift_tokens, 0);
  EXPECT_EQ(world.scheduler->totals().unknown_ids, 0);
  EXPECT_EQ(world.scheduler->totals().policy_violations, 0);
  for (const auto& [id, output] : world.outputs) {
    EXPECT_TRUE(world.done.contains(id) || world.cancelled.contains(id)) << "request " << id << " was lost";
  }
}

TEST(SchedulerModel, LockstepKeepsItsAccounts) {
  for (uint64_t seed = 1; seed <= 200; ++seed) RunWorld(PlanMode::kLockstep, seed);
}

TEST(SchedulerModel, PipelinedKeepsItsAccounts) {
  for (uint64_t seed = 1; seed <= 200; ++seed) RunWorld(PlanMode::kPipelined, seed);
}

}  // namespace
}  // namespace bfio::core
