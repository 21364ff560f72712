// The replay of placement rules keeps the group's request rate, even if requests are rare.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "tests/unit/router/core/scheduler/step_group.h"

namespace bfio::core {
namespace {

using bfio::testing::Request;
using bfio::testing::StepGroup;

// Four workers with bf_io_auto. All requests have prompts of `prompt` tokens and outputs of `output`.
class Replayed : public StepGroup {
 public:
  Replayed(int32_t slots, int64_t prompt, int64_t output)
      : StepGroup(std::vector(4, WorkerSpec{.slots = slots, .kv_tokens = 100'000'000}),
                  *MakePolicy("bf_io_auto", {}), {}, *MakeLookahead("survival")),
        prompt_(prompt),
        output_(output) {}

  // The mean over `steps` steps of the largest load; `arrivals(step)` requests arrive in each step.
  template <class Arrivals>
  double MeanLargest(int64_t steps, Arrivals arrivals) {
    double sum = 0;
    for (int64_t i = 1; i <= steps; ++i) {
      for (int64_t n = arrivals(i); n > 0; --n) Enqueue(Request(++last_, prompt_, 1 << 20), output_);
      largest_ = 0;
      Step();
      sum += static_cast<double>(largest_);
    }
    return sum / static_cast<double>(steps);
  }

  const RuleChooser& chooser() const { return group.group().chooser(); }

 protected:
  void OnReported(size_t, const Done& done) override {
    largest_ = std::max(largest_, done.report.load_tokens);
  }

 private:
  const int64_t prompt_, output_;
  int64_t largest_ = 0;
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
