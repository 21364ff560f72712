// A scheduler that starts from another one's saved state behaves identically.
#include "router/core/scheduler/scheduler_state.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/testing/one_group.h"
#include "tests/testing/random_session.h"

namespace bfio::core {
namespace {

using bfio::testing::OneGroup;

bool operator==(const Plan& a, const Plan& b) {
  return a.apply_step == b.apply_step && a.level_s == b.level_s &&
         std::equal(a.placements.begin(), a.placements.end(), b.placements.begin(), b.placements.end(),
                    [](const Placement& x, const Placement& y) {
                      return x.id == y.id && x.worker == y.worker && x.wait_steps == y.wait_steps;
                    }) &&
         std::equal(a.drops.begin(), a.drops.end(), b.drops.begin(), b.drops.end(),
                    [](const Drop& x, const Drop& y) { return x.id == y.id && x.worker == y.worker; });
}

// Two schedulers that must give equal answers; the second one is created during the test.
struct Twins {
  std::unique_ptr<OneGroup> a, b;

  template <typename F>
  auto Both(F&& call) {
    auto result = call(*a);
    if (b != nullptr) {
      EXPECT_TRUE(call(*b) == result);
    }
    return result;
  }
  absl::Status Enqueue(const RequestSpec& spec) {
    return Both([&](OneGroup& s) { return s.Enqueue(spec); });
  }
  void Requeue(const RequestSpec& spec) {
    a->Requeue(spec);
    if (b != nullptr) b->Requeue(spec);
  }
  CancelOutcome Cancel(RequestId id) {
    return Both([&](OneGroup& s) { return s.Cancel(id); });
  }
  std::vector<RequestId> OpenEpoch(const std::vector<EpochMember>& members) {
    return Both([&](OneGroup& s) { return s.OpenEpoch(members); });
  }
  void CloseEpoch() {
    a->CloseEpoch();
    if (b != nullptr) b->CloseEpoch();
  }
  void SetAcceptsNew(WorkerIndex worker, bool accepts) {
    a->SetAcceptsNew(worker, accepts);
    if (b != nullptr) b->SetAcceptsNew(worker, accepts);
  }
  void SetTime(WorkerIndex worker, double per_token, double offset) {
    a->SetTime(worker, per_token, offset);
    if (b != nullptr) b->SetTime(worker, per_token, offset);
  }
  void SetCost(WorkerIndex worker, const BatchCost& cost) {
    a->SetCost(worker, cost);
    if (b != nullptr) b->SetCost(worker, cost);
  }
  absl::Status OnReport(WorkerIndex worker, const StepReport& report) {
    return Both([&](OneGroup& s) { return s.OnReport(worker, report); });
  }
  std::optional<Plan> MakePlan(bool force) {
    auto plan = a->MakePlan(force);
    if (b == nullptr) return plan;
    const auto other = b->MakePlan(force);
    EXPECT_EQ(plan.has_value(), other.has_value());
    if (plan && other) {
      EXPECT_TRUE(*plan == *other);
    }
    return plan;
  }
  bool Parked() { return a->Parked(); }
};

// A new scheduler, or one that continues from the state of `other`.
std::unique_ptr<OneGroup> Make(PlanMode mode, absl::string_view policy, absl::string_view admission,
                               const OneGroup* other) {
  SchedulerOptions options;
  options.plan_mode = mode;
  options.max_waiting = 25;
  options.admission = *ParseKvAdmission(admission);
  options.hold_after_steps = 6;
  auto made = *MakePolicy(policy, {});
  auto lookahead = *MakeLookahead("max_tokens");
  if (other == nullptr) return std::make_unique<OneGroup>(options, std::move(made), std::move(lookahead));
  auto copy = std::make_unique<OneGroup>(options, std::move(made), other->Save(), std::move(lookahead));
  EXPECT_TRUE(copy->restored().ok()) << copy->restored();
  return copy;
}

void RunTwins(PlanMode mode, absl::string_view policy, uint64_t seed, absl::string_view admission = "none") {
  SCOPED_TRACE(absl::StrCat(policy, ", ", admission, ", seed ", seed));
  Twins twins;
  twins.a = Make(mode, policy, admission, nullptr);
  ::bfio::testing::RandomSession<Twins> session(twins, seed);
  for (int i = 0; i < 120; ++i) {
    if (i % 30 == 15 + static_cast<int>(seed % 10)) {
      twins.b = Make(mode, policy, admission, twins.a.get());
    }
    session.Iterate();
    if (::testing::Test::HasFailure()) return;
  }
  EXPECT_EQ(twins.a->totals().policy_calls, twins.b->totals().policy_calls);
  EXPECT_EQ(twins.a->totals().drift_tokens, twins.b->totals().drift_tokens);
  EXPECT_EQ(twins.a->waiting(), twins.b->waiting());
  EXPECT_EQ(twins.a->placed(), twins.b->placed());
}

TEST(SchedulerState, MemorylessPoliciesPlanOnAsTheOriginalDoes) {
  for (const char* policy : {"fcfs", "least_tokens", "lpt", "min_min", "bf_io"}) {
    for (uint64_t seed = 1; seed <= 20; ++seed) {
      RunTwins(PlanMode::kPipelined, policy, seed);
      RunTwins(PlanMode::kLockstep, policy, seed);
      RunTwins(PlanMode::kPipelined, policy, seed, "kv_feasible");
      RunTwins(PlanMode::kPipelined, policy, seed, "mc_sf:most=5");
      if (HasFailure()) return;
    }
  }
}

TEST(SchedulerState, AFreshSchedulersStateIsAFreshScheduler) {
  Twins twins;
  twins.a = Make(PlanMode::kPipelined, "fcfs", "none", nullptr);
  twins.b = Make(PlanMode::kPipelined, "fcfs", "none", twins.a.get());
  ::bfio::testing::RandomSession<Twins> session(twins, 1);
  for (int i = 0; i < 50; ++i) session.Iterate();
}

std::string Refusal(const ClusterState& state) {
  Cluster cluster({}, {"fcfs", {}});
  return std::string(cluster.Restore(state).message());
}

TEST(SchedulerState, ContradictionsAreRefusedByName) {
  ClusterState state;
  state.last_group = 4;
  state.pool.waiting.push_back({{.id = 7, .prefill_tokens = 1, .max_new_tokens = 1}, 1});
  EXPECT_EQ(Refusal(state), "");
  ClusterState twice = state;
  twice.pool.waiting.push_back(state.pool.waiting[0]);
  EXPECT_EQ(Refusal(twice), "request 7 is in the waiting pool twice");
  ClusterState both = state;
  both.groups.emplace_back().workers.emplace_back().residents.push_back({.spec = state.pool.waiting[0].spec});
  EXPECT_EQ(Refusal(both), "request 7 is in two places");
  ClusterState ahead = state;
  ahead.groups.emplace_back().workers.emplace_back().last_step = 3;
  EXPECT_EQ(Refusal(ahead), "the ranks have reported step 3, not 0");
  ClusterState tenants = state;
  tenants.pool.service.tenants = {{1, 2}, {1, 3}};
  EXPECT_EQ(Refusal(tenants), "the state has a tenant twice");
  ClusterState groups;
  groups.last_group = 1;
  for (const GroupIndex group : {0, 1}) {
    groups.groups.emplace_back().group = group;
    groups.groups.back().workers.emplace_back().residents.push_back({.spec = state.pool.waiting[0].spec});
  }
  EXPECT_EQ(Refusal(groups), "request 7 is in two groups");
  groups.groups[1] = {};
  EXPECT_EQ(Refusal(groups), "group 0 follows group 0; indices must ascend");
  groups.groups[1].group = 2;
  EXPECT_EQ(Refusal(groups), "group 2 is above the last one, 1");
}

}  // namespace
}  // namespace bfio::core
