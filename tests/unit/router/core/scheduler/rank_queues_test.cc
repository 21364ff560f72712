// Requests that are held to a rank (RequestSpec::held_to): where and when they are placed, and that those
// that cannot be placed do not affect other requests.
#include "router/core/scheduler/rank_queues.h"

#include <gmock/gmock.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/rng.h"
#include "router/core/policy/policy.h"
#include "tests/testing/one_group.h"

namespace bfio::core {
namespace {

using ::bfio::testing::OneGroup;
using ::testing::ElementsAre;

RequestSpec HeldSpec(RequestId id, WorkerIndex worker, int64_t prompt = 10, int64_t output = 4) {
  RequestSpec spec{.id = id, .prefill_tokens = prompt, .max_new_tokens = output};
  spec.held_to = {OneGroup::kGroup, worker};
  return spec;
}
RequestSpec FreeSpec(RequestId id, int64_t prompt = 10, int64_t output = 4) {
  return {.id = id, .prefill_tokens = prompt, .max_new_tokens = output};
}

// A group in lockstep whose workers generate all tokens of their requests.
class RankSteps {
 public:
  RankSteps(const std::string& policy, std::vector<WorkerSpec> workers, SchedulerOptions options = {})
      : group_(Lockstep(options), *MakePolicy(policy, {})), running_(workers.size()) {
    std::vector<EpochMember> members;
    for (const WorkerSpec& worker : workers) members.push_back({worker, {}, {}});
    group_.OpenEpoch(std::move(members));
  }

  OneGroup& group() { return group_; }
  void Enqueue(const RequestSpec& spec) {
    ASSERT_TRUE(group_.Enqueue(spec).ok());
    specs_[spec.id] = spec;
  }
  // All placements so far: id and worker, in order.
  const std::vector<std::pair<RequestId, WorkerIndex>>& placed() const { return placed_; }
  std::vector<RequestId> PlacedOn(WorkerIndex worker) const {
    std::vector<RequestId> ids;
    for (const auto& [id, where] : placed_) {
      if (where == worker) ids.push_back(id);
    }
    return ids;
  }

  // Makes a plan and, if there is one, runs a step.
  void Step() {
    const std::optional<Plan> plan = group_.MakePlan();
    if (!plan) return;
    for (const Placement& placement : plan->placements) {
      const RequestSpec& spec = specs_.at(placement.id);
      EXPECT_EQ(spec.held_to.value_or(RequestSpec::HeldRank{0, placement.worker}).worker, placement.worker)
          << "request " << placement.id;
      placed_.emplace_back(placement.id, placement.worker);
      running_[placement.worker][placement.id] = {spec.prefill_tokens, spec.max_new_tokens};
    }
    std::vector<StepReport> reports(running_.size());
    std::vector<std::vector<RequestId>> finished(running_.size());
    bool idle = true;
    for (size_t g = 0; g < running_.size(); ++g) {
      reports[g].step = reports[g].applied_plan = plan->apply_step;
      for (auto it = running_[g].begin(); it != running_[g].end();) {
        reports[g].load_tokens += it->second.first++;
        if (--it->second.second > 0) {
          ++it;
          continue;
        }
        finished[g].push_back(it->first);
        it = running_[g].erase(it);
      }
      idle = idle && running_[g].empty();
    }
    for (size_t g = 0; g < running_.size(); ++g) {
      reports[g].group_idle = idle;
      reports[g].finished = finished[g];
      EXPECT_TRUE(group_.OnReport(static_cast<WorkerIndex>(g), reports[g]).ok());
    }
  }

 private:
  static SchedulerOptions Lockstep(SchedulerOptions options) {
    options.plan_mode = PlanMode::kLockstep;
    return options;
  }

  OneGroup group_;
  std::map<RequestId, RequestSpec> specs_;
  // By worker and request: the tokens that it holds, and those that it will still generate.
  std::vector<std::map<RequestId, std::pair<int64_t, int64_t>>> running_;
  std::vector<std::pair<RequestId, WorkerIndex>> placed_;
};

class RankQueuesOfPolicyTest : public ::testing::TestWithParam<PolicyInfo> {
 protected:
  std::string policy() const { return std::string(GetParam().name); }
};
INSTANTIATE_TEST_SUITE_P(Policies, RankQueuesOfPolicyTest, ::testing::ValuesIn(RegisteredPolicies()),
                         [](const auto& param) { return std::string(param.param.name); });

TEST_P(RankQueuesOfPolicyTest, AHeldRequestRunsOnItsRankOrNowhere) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    const WorkerSpec worker{.slots = 2, .kv_tokens = 60};
    RankSteps steps(policy(), {worker, worker, worker});
    RequestId id = 0;
    int64_t held = 0;
    for (int step = 0; step < 200; ++step) {
      for (uint64_t n = step < 100 ? rng.Below(3) : 0; n > 0; --n) {
        const int64_t prompt = 1 + static_cast<int64_t>(rng.Below(40));
        const bool hold = rng.Below(3) == 0;
        held += hold ? 1 : 0;
        steps.Enqueue(hold ? HeldSpec(++id, static_cast<WorkerIndex>(rng.Below(3)), prompt)
                           : FreeSpec(++id, prompt));
      }
      steps.Step();
    }
    EXPECT_GT(held, 10);
    EXPECT_EQ(steps.placed().size(), id) << "all are served in the end";
    EXPECT_EQ(steps.group().waiting() + steps.group().placed(), 0);
    EXPECT_EQ(steps.group().totals().policy_violations, 0);
  }
}

// A draining rank takes no requests, so those held to it wait. All others must be placed as if these did not
// exist.
TEST_P(RankQueuesOfPolicyTest, RequestsThatCannotBePlacedChangeNothingForOthers) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    SCOPED_TRACE(seed);
    const WorkerSpec worker{.slots = 3, .kv_tokens = 100};
    RankSteps alone(policy(), {worker, worker, worker}), beside(policy(), {worker, worker, worker});
    for (RankSteps* steps : {&alone, &beside}) steps->group().SetAcceptsNew(0, false);
    Rng rng(seed);
    RequestId id = 0;
    for (int step = 0; step < 150; ++step) {
      for (uint64_t n = rng.Below(4); n > 0; --n) {
        const RequestSpec spec = FreeSpec(++id, 1 + static_cast<int64_t>(rng.Below(60)));
        alone.Enqueue(spec);
        beside.Enqueue(spec);
      }
      if (rng.Below(2) == 0) beside.Enqueue(HeldSpec(++id, 0));
      alone.Step();
      beside.Step();
    }
    EXPECT_GT(alone.placed().size(), 100u);
    EXPECT_EQ(alone.placed(), beside.placed());
  }
}

TEST(RankQueuesTest, TheMoreUrgentRequestOfARankGoesFirst) {
  RankSteps steps("fcfs", {{.slots = 1, .kv_tokens = 100}, {.slots = 1, .kv_tokens = 100}});
  steps.Enqueue(HeldSpec(1, 1));
  steps.Enqueue(HeldSpec(2, 1));
  RequestSpec urgent = HeldSpec(3, 1);
  urgent.priority = 1;
  steps.Enqueue(urgent);
  for (int i = 0; i < 20; ++i) steps.Step();
  EXPECT_THAT(steps.PlacedOn(1), ElementsAre(3, 1, 2));
  EXPECT_THAT(steps.PlacedOn(0), ElementsAre());
}

// A request that names a rank must not pass earlier ones that leave the choice to the router.
TEST(RankQueuesTest, AHeldRequestPassesNoEarlierOneWhenSlotsAreShort) {
  RankSteps steps("fcfs", {{.slots = 1, .kv_tokens = 100}});
  for (RequestId id = 1; id <= 3; ++id) steps.Enqueue(FreeSpec(id));
  steps.Enqueue(HeldSpec(4, 0));
  steps.Step();
  for (RequestId id = 5; id <= 8; ++id) steps.Enqueue(FreeSpec(id));
  for (int i = 0; i < 60; ++i) steps.Step();
  EXPECT_THAT(steps.PlacedOn(0), ElementsAre(1, 2, 3, 4, 5, 6, 7, 8));
}

// Small requests that arrive faster than they leave would always fill every gap of the rank.
TEST_P(RankQueuesOfPolicyTest, ALargeHeldRequestGetsIntoItsRank) {
  RankSteps steps(policy(), {{.slots = 8, .kv_tokens = 100}, {.slots = 8, .kv_tokens = 100}});
  RequestId id = 0;
  constexpr RequestId kLarge = 1'000'000;
  int64_t waited = -1;
  for (int64_t step = 0; step < kHoldAfterSteps + 40; ++step) {
    while (steps.group().waiting() < 12) steps.Enqueue(FreeSpec(++id, 16, 5));
    if (step == 2) steps.Enqueue(HeldSpec(kLarge, 1, 86, 5));
    steps.Step();
    const std::vector<RequestId> there = steps.PlacedOn(1);
    if (waited < 0 && std::find(there.begin(), there.end(), kLarge) != there.end()) waited = step - 2;
  }
  EXPECT_GE(waited, 0) << "it never got in";
}

TEST(RankQueuesTest, WithoutItsRankARequestWaitsAndCanBeCancelled) {
  RankSteps steps("fcfs", {{.slots = 4, .kv_tokens = 100}});
  steps.Enqueue(HeldSpec(1, 5));
  steps.Step();
  EXPECT_TRUE(steps.placed().empty());
  EXPECT_EQ(steps.group().waiting(), 1);
  EXPECT_EQ(steps.group().Cancel(1), CancelOutcome::kDequeued);
  EXPECT_EQ(steps.group().waiting(), 0);
}

TEST(RankQueuesTest, HalfOfThePoolIsFreeOfHeldRequests) {
  SchedulerOptions options = {.max_waiting = 4};
  RankSteps steps("fcfs", {{.slots = 1, .kv_tokens = 100}}, options);
  steps.Enqueue(HeldSpec(1, 5));
  steps.Enqueue(HeldSpec(2, 5));
  EXPECT_TRUE(absl::IsResourceExhausted(steps.group().Enqueue(HeldSpec(3, 5))));
  steps.Enqueue(FreeSpec(4));
  steps.Enqueue(FreeSpec(5));
}

}  // namespace
}  // namespace bfio::core
