// A deadline ends the search of bf_io and bf_io_auto with the best plan so far. Without a deadline, or before
// it, decisions do not change.
#include <gmock/gmock.h>

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "common/base/rng.h"
#include "tests/testing/plan_contract.h"
#include "tests/testing/policy_case.h"

namespace bfio::core {
namespace {

constexpr int kWorkers = 32;
constexpr int kSlots = 2;

// More waiting requests than free slots, too many for the exact solution. The outlook is one step long.
PolicyCase Crowd(uint64_t seed) {
  Rng rng(seed);
  PolicyCase crowd;
  std::vector<double> ahead;
  for (int g = 0; g < kWorkers; ++g) {
    const auto load = static_cast<int64_t>(50'000 + rng.Below(5'000));
    crowd.Worker(load, kSlots, kAmpleKv, 40);
    ahead.insert(ahead.end(), {static_cast<double>(load), static_cast<double>(load - rng.Below(2'000))});
  }
  for (int i = 0; i < 300; ++i) crowd.Waiting(1 + static_cast<int64_t>(rng.Gamma(0.8) * 1'200), 300 - i);
  return crowd.Ahead(1, ahead, {1, 0.9});
}

class StopSignalTest : public ::testing::TestWithParam<const char*> {
 protected:
  static std::unique_ptr<Policy> Make(StopSignal stop) {
    return PolicyNamed(GetParam(), {.stop = std::move(stop)});
  }
};
INSTANTIATE_TEST_SUITE_P(Kinds, StopSignalTest,
                         ::testing::Values("bf_io", "bf_io:square:1", "bf_io:paper:1", "bf_io_auto"),
                         [](const auto& param) { return std::to_string(param.index); });

TEST_P(StopSignalTest, ADecisionThatIsEndedFillsEverySlotAndIsMarkedAndNoOtherIs) {
  bool over = true;
  const std::unique_ptr<Policy> policy = Make([&] { return over; });
  const PolicyCase crowd = Crowd(1);
  const Decision decision = crowd.Call(*policy);
  EXPECT_TRUE(decision.stopped_early);
  const std::vector<int32_t> plan = crowd.WorkersOf(decision);
  for (int32_t g = 0; g < kWorkers; ++g) EXPECT_EQ(std::count(plan.begin(), plan.end(), g), kSlots);
  EXPECT_FALSE(CaseOf({{5, 0}}, {7}).Call(*policy).stopped_early) << "nothing to decide";
  EXPECT_FALSE(CaseOf({{10'000, 0}, {4'000, 1}}, {300, 6'000, 2'000}).Call(*policy).stopped_early)
      << "so few choices are all tried, whatever the clock says";
  over = false;
  EXPECT_FALSE(Crowd(2).Call(*policy).stopped_early);
}

TEST_P(StopSignalTest, DeadlineThatDoesNotComeChangesNothing) {
  int64_t asked = 0;
  const std::unique_ptr<Policy> without = Make({}), with = Make([&] { return ++asked < 0; });
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    const PolicyCase crowd = Crowd(seed);
    const Decision decision = crowd.Call(*with);
    EXPECT_EQ(crowd.WorkersOf(decision), crowd.Decide(*without)) << seed;
    EXPECT_FALSE(decision.stopped_early);
  }
  EXPECT_GT(asked, 0);
}

// --- slots for all ---

constexpr int kRequests = 200;

// Slots for all requests, and an outlook three steps ahead. `odd_kv`: KV tokens of the odd workers, which
// have lower loads than the others.
class Spare {
 public:
  explicit Spare(int64_t odd_kv = kAmpleKv) {
    Rng rng(7);
    for (int g = 0; g < kWorkers; ++g) {
      const auto load = static_cast<int64_t>(10'000 * (1 - g % 2) + rng.Below(9'000));
      pool_.Worker(load, 40, g % 2 == 1 ? odd_kv : kAmpleKv, 30);
      ahead_.insert(ahead_.end(), 3, static_cast<double>(load));
    }
    for (int i = 0; i < kRequests; ++i)
      pool_.Waiting(1 + static_cast<int64_t>(rng.Gamma(0.5) * 4'000), 300 - i);
  }

  Snapshot View(PlacementRule rule) const {
    Snapshot snapshot = pool_.View();
    snapshot.rule = rule;
    snapshot.far = {steps_, ahead_, variance_, variance_, curve_of_, curves_, 50};
    return snapshot;
  }

 private:
  PolicyCase pool_;
  const std::vector<int64_t> steps_ = {0, 1, 100};
  std::vector<double> ahead_;
  const std::vector<double> variance_ = {1e6, 1e6, 1e6}, curves_ = {1, 0.9, 0.3};
  const std::vector<int32_t> curve_of_ = std::vector<int32_t>(kRequests, 0);
};

struct Outcome {
  Decision decision;
  // Number of checks of the deadline, and how many of them found that it had passed.
  int64_t questions = 0, late = 0;
};

// The deadline passes after `in_time` checks.
Outcome DecideSpare(const Spare& spare, PlacementRule rule, int64_t in_time) {
  Outcome outcome;
  const StopSignal stop = [&] {
    const bool over = ++outcome.questions > in_time;
    outcome.late += over ? 1 : 0;
    return over;
  };
  PolicyNamed("bf_io_auto", {.stop = stop})->Decide(spare.View(rule), outcome.decision);
  return outcome;
}

// Number of placements, none twice and within every worker's slots and memory.
size_t Feasible(const Snapshot& snapshot, const Decision& decision) {
  LeftAfter(snapshot, decision.assignments);
  return decision.assignments.size();
}

constexpr int64_t kNeverOver = int64_t{1} << 40;

class PlacementStopTest : public ::testing::TestWithParam<PlacementRule> {};
INSTANTIATE_TEST_SUITE_P(Rules, PlacementStopTest,
                         ::testing::Values(PlacementRule::kHeadroom, PlacementRule::kHorizon),
                         [](const auto& param) {
                           return param.param == PlacementRule::kHeadroom ? "headroom" : "horizon";
                         });

// Earlier placements stay; after the deadline the largest request goes first, to the least loaded worker.
TEST_P(PlacementStopTest, DeadlinePlacesTheRestOnTheLeastLoadedWorkers) {
  const Spare spare;
  const Snapshot snapshot = spare.View(GetParam());
  const Outcome whole = DecideSpare(spare, GetParam(), kNeverOver);
  EXPECT_EQ(Feasible(snapshot, whole.decision), size_t{kRequests});
  EXPECT_FALSE(whole.decision.stopped_early);
  for (const int64_t in_time : {0, 1, 3}) {
    const Outcome cut = DecideSpare(spare, GetParam(), in_time);
    EXPECT_TRUE(cut.decision.stopped_early);
    EXPECT_EQ(cut.late, 1) << "nothing is searched after the deadline";
    ASSERT_EQ(Feasible(snapshot, cut.decision), size_t{kRequests});
    // For any number of requests placed in time, the others are placed as expected.
    std::vector<double> times;
    for (const WorkerView& worker : snapshot.workers) times.push_back(worker.Time());
    size_t same = 0, least = 0;
    int64_t last = std::numeric_limits<int64_t>::max();
    for (size_t i = 0; i < size_t{kRequests}; ++i) {
      const Assignment now = cut.decision.assignments[i], then = whole.decision.assignments[i];
      const int64_t prompt = snapshot.waiting[static_cast<size_t>(now.waiting_index)].prefill_tokens;
      EXPECT_LE(prompt, last);
      last = prompt;
      if (same == i && now.waiting_index == then.waiting_index && now.worker == then.worker) ++same;
      double& time = times[static_cast<size_t>(now.worker)];
      least = time == *std::min_element(times.begin(), times.end()) ? least + 1 : 0;
      time += static_cast<double>(prompt);
    }
    // Requests between two checks.
    const size_t every = GetParam() == PlacementRule::kHeadroom ? 32 : 1;
    EXPECT_GE(same, every * static_cast<size_t>(in_time));
    EXPECT_GE(same + least, size_t{kRequests});
    EXPECT_LT(same, size_t{kRequests}) << "the deadline makes a difference";
  }
}

// The rule by counts is as fast as the cheap rule, so a deadline changes its plan only if memory is short.
TEST(PlacementStop, DeadlineChangesTheRuleByCountsOnlyWhereMemoryIsShort) {
  const Outcome whole = DecideSpare(Spare(), PlacementRule::kCounts, kNeverOver),
                cut = DecideSpare(Spare(), PlacementRule::kCounts, 0);
  EXPECT_FALSE(cut.decision.stopped_early);
  ASSERT_EQ(cut.decision.assignments.size(), whole.decision.assignments.size());
  for (size_t i = 0; i < whole.decision.assignments.size(); ++i)
    EXPECT_EQ(cut.decision.assignments[i].worker, whole.decision.assignments[i].worker);
}

// The half of the workers with the least load has no memory, and the cheap rule would check all of them for
// every request. Instead, a part of the requests keeps waiting.
TEST(PlacementStop, DeadlineEndsTheDecisionWhereMemoryIsShortToo) {
  const Spare spare(/*odd_kv=*/0);
  for (const PlacementRule rule :
       {PlacementRule::kHeadroom, PlacementRule::kHorizon, PlacementRule::kCounts, PlacementRule::kRefill}) {
    const Outcome whole = DecideSpare(spare, rule, kNeverOver), cut = DecideSpare(spare, rule, 0);
    EXPECT_EQ(Feasible(spare.View(rule), whole.decision), size_t{kRequests});
    EXPECT_GT(whole.questions, 5);
    EXPECT_TRUE(cut.decision.stopped_early);
    EXPECT_LE(cut.late, 2);
    EXPECT_GE(Feasible(spare.View(rule), cut.decision), 10u);
  }
}

}  // namespace
}  // namespace bfio::core
