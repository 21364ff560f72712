// The replay of placement rules keeps the group's request rate, even if requests are rare.
#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <vector>

#include "tests/testing/one_group.h"

namespace bfio::core {
namespace {

using bfio::testing::OneGroup;

constexpr int kWorkers = 4;

// A group with bf_io_auto. All requests have prompts of `prompt` tokens and outputs of `output`.
class Replayed {
 public:
  Replayed(int32_t slots, int64_t prompt, int64_t output)
      : prompt_(prompt),
        output_(output),
        group_(Options(), *MakePolicy("bf_io_auto", {}), *MakeLookahead("survival")),
        running_(kWorkers) {
    std::vector<EpochMember> members(kWorkers);
    for (EpochMember& member : members) member.spec = {slots, 100'000'000, true};
    group_.OpenEpoch(members);
  }

  void Enqueue(int requests) {
    for (; requests > 0; --requests) {
      RequestSpec spec = {.id = ++last_, .prefill_tokens = prompt_, .max_new_tokens = 1 << 20};
      ASSERT_TRUE(group_.Enqueue(spec).ok());
    }
  }

  // Takes a step, unless nothing runs or waits. Returns its largest load.
  int64_t Step() {
    while (const auto plan = group_.MakePlan()) plans_[plan->apply_step] = *plan;
    if (plans_.count(step_ + 1) == 0) return 0;
    ++step_;
    for (const Placement& placement : plans_[step_].placements) {
      running_[static_cast<size_t>(placement.worker)].push_back({placement.id, prompt_, output_});
    }
    plans_.erase(step_);
    int64_t largest = 0;
    bool idle = true;
    std::vector<StepReport> reports(kWorkers);
    std::vector<std::vector<RequestId>> finished(kWorkers);
    for (size_t g = 0; g < kWorkers; ++g) {
      for (Running& one : running_[g]) {
        reports[g].load_tokens += one.load++;
        if (--one.left == 0) finished[g].push_back(one.id);
      }
      std::erase_if(running_[g], [](const Running& one) { return one.left == 0; });
      idle = idle && running_[g].empty();
      largest = std::max(largest, reports[g].load_tokens);
    }
    for (size_t g = 0; g < kWorkers; ++g) {
      reports[g].step = reports[g].applied_plan = step_;
      reports[g].finished = finished[g];
      reports[g].group_idle = idle;
      EXPECT_TRUE(group_.OnReport(static_cast<WorkerIndex>(g), reports[g]).ok());
    }
    return largest;
  }

  // The mean over `steps` steps of the largest load; `arrivals(step)` requests arrive in each step.
  template <class Arrivals>
  double MeanLargest(int64_t steps, Arrivals arrivals) {
    double sum = 0;
    for (int64_t i = 1; i <= steps; ++i) {
      Enqueue(arrivals(i));
      sum += static_cast<double>(Step());
    }
    return sum / static_cast<double>(steps);
  }

  const RuleChooser& chooser() const { return group_.group().chooser(); }

 private:
  static SchedulerOptions Options() { return {.plan_mode = PlanMode::kLockstep}; }

  struct Running {
    RequestId id;
    int64_t load, left;
  };
  const int64_t prompt_, output_;
  OneGroup group_;
  std::vector<std::vector<Running>> running_;
  std::map<int64_t, Plan> plans_;
  int64_t step_ = 0;
  RequestId last_ = 0;
};

// Outputs of 900 tokens and an arrival every 45 steps: on average 20 residents of 600 tokens, 3,000 tokens on
// each of four workers. Depending on the rule the largest load is up to half as large again.
TEST(RuleReplay, RequestEvery45StepsIsReplayedAtThatRate) {
  Replayed group(72, 150, 900);
  const double measured = group.MeanLargest(16'000, [](int64_t step) { return step % 45 == 0 ? 1 : 0; });
  ASSERT_TRUE(group.chooser().measured());
  EXPECT_GT(measured, 2'700) << "the group itself";
  for (const RuleChooser::Candidate& candidate : group.chooser().candidates()) {
    EXPECT_GT(candidate.time, 2'950) << PlacementRuleName(candidate.rule);
    EXPECT_LT(candidate.time, 4'500) << PlacementRuleName(candidate.rule);
  }
}

// Bursts that exceed the 14 free slots, and single requests that keep the group busy. The placements made
// while some of a burst waits are replayed after the wait, spread over these steps.
TEST(RuleReplay, RequestsPlacedWhileSlotsAreShortAreReplayedToo) {
  Replayed group(4, 100, 20);
  const auto bursts = [](int64_t step) { return step % 40 == 0 ? 18 : step % 10 == 0 ? 1 : 0; };
  group.MeanLargest(4'000, bursts);
  const double measured = group.MeanLargest(2'000, bursts);
  ASSERT_TRUE(group.chooser().measured());
  for (const RuleChooser::Candidate& candidate : group.chooser().candidates()) {
    EXPECT_NEAR(candidate.time, measured, 0.2 * measured) << PlacementRuleName(candidate.rule);
  }
}

}  // namespace
}  // namespace bfio::core
